"""Deep learning recommendation models whose embedding vectors travel with a largest error."""

"""Controller process: planning requests, northbound HTTP interface and supervision."""

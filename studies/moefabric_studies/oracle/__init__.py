"""The model beside other simulators: scenarios, back ends, golden results and their page."""

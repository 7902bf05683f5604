"""The model beside the packet simulator of MixNet's authors."""

"""The process that connects switches with their OpenFlow controllers."""

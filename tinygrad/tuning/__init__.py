"""The search for better schedules of kernels, on the device that is to run them."""

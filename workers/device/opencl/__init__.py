"""OpenCL devices: sessions, buffers, queues, launches and measured peaks."""

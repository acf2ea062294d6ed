"""The hardware of this machine and how the process uses it: device, precision, threads and memory.

`device.py` chooses the device and precision, and describes the machine for reports. `threads.py` chooses the number of
CPU threads. `free_memory.py` says how much main memory is free, `peak_memory.py` how much a piece of work takes, on the
CPU or on CUDA. `allocator.py` makes glibc keep freed memory. `openvino_package.py` imports OpenVINO for all who use
it. The files can be read in any order.
"""

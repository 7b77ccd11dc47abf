// Devices: how many there are, which one is current, whether the runtime may be used here.
#pragma once

#include <c10/core/Device.h>

namespace pybind11 {
class module_;
}

namespace torchtpu {

// Upper bound of device indices; c10::DeviceIndex is a signed byte.
constexpr int kMaxDevices = 128;

// Number of devices. Asks `torchtpu.runtime.client.device_count()` once (takes the GIL) and
// caches the answer. Throws the Python error when XLA has no device on the chosen platform.
c10::DeviceIndex device_count();

// The calling thread's current device; 0 in a new thread. Never starts the runtime.
c10::DeviceIndex current_device();

// Throws a RuntimeError that names the index and the count when there is no such device,
// or when the process was forked after the runtime had started.
void set_device(c10::DeviceIndex index);

// `index`, or the current device for -1. Throws as `set_device` does.
c10::DeviceIndex checked_device(c10::DeviceIndex index);

// True once the XLA client has been created (or its creation has begun) in this process.
bool runtime_started();

// Throws a RuntimeError in a process that was forked after the runtime had started.
void check_not_forked();

void bind_device(pybind11::module_& m);

} // namespace torchtpu

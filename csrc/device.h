// Devices, streams and events: what PyTorch's device guard asks for. XLA orders all work on a device itself.
#pragma once

#include "common.h"

#include <c10/core/Stream.h>

namespace pybind11 {
class module_;
}

namespace torchtpu {

constexpr c10::DeviceIndex kMaxDevices = 64;

// Number of devices. Starts the runtime at the first call, through Python. Raises what the runtime raises.
c10::DeviceIndex device_count();
c10::DeviceIndex current_device();
// Raises RuntimeError for an index that does not exist.
void set_device(c10::DeviceIndex index);
bool runtime_started();
// Raises RuntimeError in a process forked from one that had started the runtime: XLA's threads do not survive a fork.
void check_not_forked();
void bind_device(pybind11::module_& m);

} // namespace torchtpu

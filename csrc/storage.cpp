#include "storage.h"

#include "device.h"
#include "window.h"

#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <sstream>
#include <unordered_map>

namespace torchtpu {

namespace {

struct SpecTable {
  std::mutex mutex;
  std::unordered_map<uint64_t, std::vector<SpecId>> by_hash;
  std::deque<Spec> specs; // references stay valid as it grows
};

SpecTable& spec_table() {
  static auto* table = new SpecTable;
  return *table;
}



struct Ledger {
  std::mutex mutex;
  std::array<MemoryStats, kMaxDevices> stats;
  Slot head; // ring of live slots
  std::atomic<int64_t> limit{0};
  std::atomic<bool> track_origins{false};
  at::CallbackHandle names = 0;
  Ledger() {
    head.next = head.previous = &head;
  }
};

Ledger& ledger() {
  static auto* instance = new Ledger;
  return *instance;
}

thread_local std::vector<std::string> running_operators;
thread_local c10::IntArrayRef hinted_sizes;
thread_local c10::ScalarType hinted_dtype = c10::ScalarType::Undefined;

std::string shape_text(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  std::ostringstream out;
  out << c10::toString(dtype) << sizes;
  return out.str();
}

std::string bytes_text(int64_t bytes) {
  std::ostringstream out;
  out.precision(2);
  out << std::fixed;
  if (bytes >= (int64_t(1) << 30)) {
    out << double(bytes) / double(1 << 30) << " GiB";
  } else if (bytes >= (1 << 20)) {
    out << double(bytes) / double(1 << 20) << " MiB";
  } else if (bytes >= (1 << 10)) {
    out << double(bytes) / 1024.0 << " KiB";
  } else {
    out << bytes << " bytes";
  }
  return out.str();
}

std::string user_line() {
  if (!callbacks().user_line) {
    return "";
  }
  Gil gil;
  PyObject* text = PyObject_CallNoArgs(callbacks().user_line.get());
  if (!text) {
    PyErr_Clear();
    return "";
  }
  PyRef owned(text);
  const char* chars = PyUnicode_Check(text) ? PyUnicode_AsUTF8(text) : nullptr;
  return chars ? chars : "";
}

// Addresses that no mapping can have: reading one by mistake faults at once, and ranges never meet, so that PyTorch's
// overlap checks are right.
uint64_t new_address(size_t nbytes) {
  static std::atomic<uint64_t> next{uint64_t(1) << 56};
  return next.fetch_add((nbytes + 127) / 64 * 64);
}

void free_slot(void* context) {
  auto* slot = static_cast<Slot*>(context);
  auto& book = ledger();
  {
    std::lock_guard<std::mutex> guard(book.mutex);
    auto& stats = book.stats[slot->device];
    stats.current -= int64_t(slot->nbytes);
    stats.freed += int64_t(slot->nbytes);
    stats.count -= 1;
    stats.frees += 1;
    slot->previous->next = slot->next;
    slot->next->previous = slot->previous;
  }
  delete slot->origin;
  delete slot->sizes;
  delete slot;
}

struct TpuAllocator final : c10::DeviceAllocator {
  c10::DataPtr allocate(size_t nbytes) override {
    const c10::DeviceIndex device = current_device();
    auto& book = ledger();
    const int64_t limit = book.limit.load(std::memory_order_relaxed);
    if (limit > 0 && book.stats[device].current + int64_t(nbytes) > limit) {
      {
        std::lock_guard<std::mutex> guard(book.mutex);
        book.stats[device].out_of_memory += 1;
      }
      const std::string text = out_of_memory_text(device, int64_t(nbytes));
      TORCH_CHECK_WITH(OutOfMemoryError, false, text);
    }
    auto* slot = new Slot;
    slot->nbytes = nbytes;
    slot->address = nbytes ? new_address(nbytes) : 0;
    slot->device = device;
    if (book.track_origins.load(std::memory_order_relaxed) && hinted_dtype != c10::ScalarType::Undefined) {
      slot->origin = new std::string(user_line());
      slot->dtype = hinted_dtype;
      slot->sizes = new std::vector<int64_t>(hinted_sizes.begin(), hinted_sizes.end());
    }
    {
      std::lock_guard<std::mutex> guard(book.mutex);
      auto& stats = book.stats[device];
      stats.current += int64_t(nbytes);
      stats.allocated += int64_t(nbytes);
      stats.peak = std::max(stats.peak, stats.current);
      stats.count += 1;
      stats.allocations += 1;
      stats.peak_count = std::max(stats.peak_count, stats.count);
      slot->next = book.head.next;
      slot->previous = &book.head;
      book.head.next->previous = slot;
      book.head.next = slot;
    }
    return {reinterpret_cast<void*>(slot->address), slot, &free_slot, c10::Device(kTpu, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr; // memory lives only with its storage
  }
  void copy_data(void*, const void*, std::size_t) const override {
    TORCH_CHECK(false, "tpu memory has no address to copy from or to");
  }
  bool initialized() override {
    return runtime_started();
  }
  void emptyCache(c10::MempoolId_t = {0, 0}) override {
    Lock lock;
    if (runtime_started()) {
      Gil gil;
      drain_released();
    }
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto now = memory_stats(device);
    c10::CachingDeviceAllocator::DeviceStats stats;
    const size_t all = 0;
    auto fill = [all](c10::CachingAllocator::Stat& s, int64_t current, int64_t peak, int64_t up, int64_t down) {
      (void)all;
      s.current = current;
      s.peak = peak;
      s.allocated = up;
      s.freed = down;
    };
    for (size_t kind = 0; kind < stats.allocated_bytes.size(); ++kind) {
      fill(stats.allocated_bytes[kind], now.current, now.peak, now.allocated, now.freed);
      fill(stats.reserved_bytes[kind], now.current, now.peak, now.allocated, now.freed);
      fill(stats.active_bytes[kind], now.current, now.peak, now.allocated, now.freed);
      fill(stats.requested_bytes[kind], now.current, now.peak, now.allocated, now.freed);
      fill(stats.allocation[kind], now.count, now.peak_count, now.allocations, now.frees);
      fill(stats.active[kind], now.count, now.peak_count, now.allocations, now.frees);
    }
    stats.num_ooms = now.out_of_memory;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    reset_accumulated(device);
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    reset_peak(device);
  }
  // (free, total) bytes. No `override`: older versions of PyTorch do not have it.
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) {
    Gil gil;
    const auto client = checked(PyImport_ImportModule("torchtpu.runtime.client"));
    const auto info = checked(PyObject_CallMethod(client.get(), "memory_info", "i", int(device)));
    unsigned long long free = 0, total = 0;
    if (!PyArg_ParseTuple(info.get(), "KK", &free, &total)) {
      throw_python_error();
    }
    return {size_t(free), size_t(total)};
  }
};

TpuAllocator& the_allocator() {
  static auto* instance = new TpuAllocator;
  return *instance;
}

struct RegisterAllocator {
  RegisterAllocator() {
    c10::SetAllocator(kTpu, &the_allocator(), 1);
  }
} register_allocator;

} // namespace

namespace {

// The live slot that begins at an address. Slow; only for storages that others made from an address.
Slot* slot_at(const void* pointer) {
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  for (Slot* s = book.head.next; s != &book.head; s = s->next) {
    if (s->address && s->address == reinterpret_cast<uint64_t>(pointer)) {
      return s;
    }
  }
  return nullptr;
}

} // namespace

SpecId intern_spec(c10::ScalarType dtype, c10::IntArrayRef shape) {
  auto& table = spec_table();
  std::lock_guard<std::mutex> guard(table.mutex);
  const uint64_t hash =
      hash_words(reinterpret_cast<const uint64_t*>(shape.data()), shape.size()) ^ (uint64_t(dtype) << 48);
  auto& ids = table.by_hash[hash];
  for (SpecId id : ids) {
    const auto& spec = table.specs[id];
    if (spec.dtype == dtype && c10::IntArrayRef(spec.shape) == shape) {
      return id;
    }
  }
  int64_t numel = 1;
  for (int64_t n : shape) {
    numel *= n;
  }
  table.specs.push_back({dtype, shape.vec(), numel * int64_t(c10::elementSize(dtype))});
  ids.push_back(SpecId(table.specs.size() - 1));
  return ids.back();
}

const Spec& spec_of(SpecId id) {
  auto& table = spec_table();
  std::lock_guard<std::mutex> guard(table.mutex);
  return table.specs[id];
}

Slot* slot_of(const c10::StorageImpl* storage) {
  const auto& pointer = storage->data_ptr();
  if (pointer.get_deleter() == &free_slot) {
    return static_cast<Slot*>(pointer.get_context());
  }
  // Made from a bare address, as PyTorch does to save a storage.
  Slot* slot = slot_at(pointer.get());
  TORCH_CHECK(slot, "this tpu storage was not made by torchtpu");
  return slot;
}

bool covers_storage(const c10::TensorImpl* tensor) {
  const Slot* slot = slot_of(tensor);
  return tensor->storage_offset() == 0 && size_t(tensor->numel()) * tensor->itemsize() == slot->nbytes &&
      tensor->is_non_overlapping_and_dense();
}

std::vector<int64_t> memory_shape(c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const size_t n = sizes.size();
  bool ordered = true;
  int64_t last = INT64_MAX;
  for (size_t i = 0; i < n && ordered; ++i) {
    if (sizes[i] != 1) {
      ordered = strides[i] <= last;
      last = strides[i];
    }
  }
  if (ordered) {
    return sizes.vec();
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return strides[a] > strides[b] || (strides[a] == strides[b] && sizes[a] < sizes[b]);
  });
  std::vector<int64_t> shape;
  shape.reserve(n);
  for (size_t i : order) {
    shape.push_back(sizes[i]);
  }
  return shape;
}

c10::Allocator* allocator() {
  return &the_allocator();
}

c10::DeviceIndex device_of_pointer(const void* pointer) {
  auto& book = ledger();
  const auto address = reinterpret_cast<uint64_t>(pointer);
  std::lock_guard<std::mutex> guard(book.mutex);
  for (Slot* s = book.head.next; s != &book.head; s = s->next) {
    if (s->address && address >= s->address && address < s->address + s->nbytes) {
      return s->device;
    }
  }
  return -1;
}

MemoryStats memory_stats(c10::DeviceIndex device) {
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  return book.stats.at(size_t(device));
}

void reset_peak(c10::DeviceIndex device) {
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  auto& stats = book.stats.at(size_t(device));
  stats.peak = stats.current;
  stats.peak_count = stats.count;
}

void reset_accumulated(c10::DeviceIndex device) {
  auto& book = ledger();
  std::lock_guard<std::mutex> guard(book.mutex);
  auto& stats = book.stats.at(size_t(device));
  stats.allocated = stats.freed = stats.allocations = stats.frees = stats.out_of_memory = 0;
}

namespace {

// Names the running operators while somebody may need them for a report.
void update_name_callback() {
  auto& book = ledger();
  const bool wanted = book.track_origins.load() || book.limit.load() > 0;
  if (wanted && !book.names) {
    book.names = at::addGlobalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& fn) -> std::unique_ptr<at::ObserverContext> {
              running_operators.emplace_back(fn.name());
              return nullptr;
            },
            [](const at::RecordFunction&, at::ObserverContext*) {
              if (!running_operators.empty()) {
                running_operators.pop_back();
              }
            })
            .scopes({at::RecordScope::FUNCTION}));
  } else if (!wanted && book.names) {
    at::removeCallback(book.names);
    book.names = 0;
  }
}

} // namespace

void set_memory_limit(int64_t bytes) {
  ledger().limit = bytes;
  update_name_callback();
}

int64_t memory_limit() {
  return ledger().limit;
}

void set_track_origins(bool on) {
  ledger().track_origins = on;
  update_name_callback();
}

std::string out_of_memory_text(c10::DeviceIndex device, int64_t asked) {
  auto& book = ledger();
  struct Live {
    size_t nbytes;
    std::string what;
  };
  std::vector<Live> live;
  MemoryStats stats;
  {
    std::lock_guard<std::mutex> guard(book.mutex);
    stats = book.stats[device];
    for (Slot* s = book.head.next; s != &book.head; s = s->next) {
      if (s->device != device || !s->nbytes) {
        continue;
      }
      std::string what;
      if (s->origin) {
        what = shape_text(s->dtype, *s->sizes) + (s->origin->empty() ? "" : " made at " + *s->origin);
      } else {
        what = "a tensor (Debug mode records where it was made)";
      }
      live.push_back({s->nbytes, what});
    }
  }
  const size_t top = std::min<size_t>(5, live.size());
  std::partial_sort(live.begin(), live.begin() + top, live.end(), [](const Live& a, const Live& b) {
    return a.nbytes > b.nbytes;
  });
  std::ostringstream out;
  out << "tpu:" << int(device) << " out of memory";
  if (!running_operators.empty()) {
    out << " in " << running_operators.front();
  }
  out << ". Tried to allocate " << bytes_text(asked) << " (" << asked << " bytes)";
  if (hinted_dtype != c10::ScalarType::Undefined) {
    out << " for " << shape_text(hinted_dtype, hinted_sizes);
  }
  const int64_t limit = book.limit.load();
  out << "; " << bytes_text(stats.current) << " in use";
  if (limit > 0) {
    out << ", " << bytes_text(std::max<int64_t>(0, limit - stats.current)) << " ("
        << std::max<int64_t>(0, limit - stats.current) << " bytes) free of the limit of " << bytes_text(limit)
        << " (TORCHTPU_MEMORY_LIMIT)";
  }
  out << ".";
  const std::string line = user_line();
  if (!line.empty()) {
    out << "\n  asked for at " << line;
  }
  if (top) {
    out << "\n  largest live tensors:";
    for (size_t i = 0; i < top; ++i) {
      out << "\n    " << bytes_text(int64_t(live[i].nbytes)) << "  " << live[i].what;
    }
  }
  out << "\n  To use less: smaller batches, torch.utils.checkpoint, or delete tensors that are no longer needed.";
  return out.str();
}

AllocationHint::AllocationHint(c10::IntArrayRef sizes, c10::ScalarType dtype) {
  hinted_sizes = sizes;
  hinted_dtype = dtype;
}

AllocationHint::~AllocationHint() {
  hinted_dtype = c10::ScalarType::Undefined;
}

} // namespace torchtpu

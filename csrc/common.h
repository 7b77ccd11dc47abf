// Shared by all of the native core: the lock, the interpreter, and small helpers.
#pragma once

#include <Python.h>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>

#include <cstdint>
#include <string>
#include <vector>

namespace torchtpu {

constexpr c10::DeviceType kTpu = c10::DeviceType::PrivateUse1;

// The recorder's lock. Order: recorder, then GIL. A thread that holds the GIL never blocks on this lock: it lets the
// GIL go first, so whoever holds the lock can always take the GIL. Recursive, because Python code that runs during a
// flush (a finaliser, a warning hook) may record operations of its own.
class Lock {
 public:
  Lock();
  ~Lock();
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

// Holds the GIL for a scope; may be nested and entered from any thread.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() {
    PyGILState_Release(state_);
  }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

// Drops a reference from any thread: at once when the GIL is held, else at the next flush.
void release_python(PyObject* object);
// Drops what threads without the GIL left behind. Needs the GIL.
void drain_released();
// Raises the pending Python error as a C++ exception that PyTorch turns back into the same Python error.
[[noreturn]] void throw_python_error();

// A strong reference that may die without the GIL.
class PyRef {
 public:
  PyRef() = default;
  explicit PyRef(PyObject* stolen) : object_(stolen) {}
  PyRef(PyRef&& other) noexcept : object_(other.object_) {
    other.object_ = nullptr;
  }
  PyRef& operator=(PyRef&& other) noexcept {
    if (this != &other) {
      reset();
      object_ = other.object_;
      other.object_ = nullptr;
    }
    return *this;
  }
  ~PyRef() {
    reset();
  }
  static PyRef borrow(PyObject* object) {
    Py_XINCREF(object);
    return PyRef(object);
  }
  void reset() {
    if (object_) {
      release_python(object_);
      object_ = nullptr;
    }
  }
  PyObject* get() const {
    return object_;
  }
  explicit operator bool() const {
    return object_ != nullptr;
  }

 private:
  PyObject* object_ = nullptr;
};

// A result of the Python C API: throws the pending error when it is null.
inline PyRef checked(PyObject* result) {
  if (!result) {
    throw_python_error();
  }
  return PyRef(result);
}

inline uint64_t hash_words(const uint64_t* words, size_t n) {
  uint64_t h = 0x9E3779B97F4A7C15ull ^ n;
  for (size_t i = 0; i < n; ++i) {
    h = (h ^ words[i]) * 0xFF51AFD7ED558CCDull;
    h ^= h >> 32;
  }
  return h;
}

// FNV-1a: the same in every process.
inline uint64_t hash_text(const std::string& text) {
  uint64_t h = 0xCBF29CE484222325ull;
  for (const char c : text) {
    h = (h ^ uint8_t(c)) * 0x100000001B3ull;
  }
  return h;
}

// The Python functions that the core calls; set once by `_C._install`.
struct Callbacks {
  PyRef describe_operator; // (name, overload) -> (kind, static names, written names, all static)
  PyRef infer_outputs; // (description) -> [(dtype, sizes)], where PyTorch has no meta kernel
  PyRef make_signature; // (description) -> object kept for the builder
  PyRef build; // (window description, wait) -> Program
  PyRef build_parts; // ([window description]) -> [Program or None], for windows of one operation
  PyRef improve; // (Program) compiles it again at full effort, in the background
  PyRef verify; // ([(flags, program)]) raises the deferred error
  PyRef explain_failure; // (exception, signature) -> exception with the operation's details
  PyRef explain_call; // (type's name, text, description) -> the same for a call that PyTorch refused
  PyRef fallback; // (name) counts and warns, or raises
  PyRef from_host, to_host, across; // transfers
  PyRef user_line; // () -> "file:line in function" of the user's innermost frame
  PyRef nan_check; // (arrays, signature) raises when a floating result holds a NaN
};
Callbacks& callbacks();

// Counters of the whole process, read by torchtpu.stats().
struct Counters {
  uint64_t operations = 0, windows = 0, programs_run = 0, hits = 0, signatures = 0, launches_by_parts = 0;
};
Counters& counters();

} // namespace torchtpu

// The recorder's lock and the care that Python references need when threads without the GIL drop them.
#include "common.h"

#include <torch/csrc/Exceptions.h>

#include <mutex>

namespace torchtpu {

namespace {

std::recursive_mutex& recorder_mutex() {
  static auto* mutex = new std::recursive_mutex; // never destroyed: threads may outlive static destructors
  return *mutex;
}

struct Released {
  std::mutex mutex;
  std::vector<PyObject*> objects;
};

Released& released() {
  static auto* list = new Released;
  return *list;
}

bool interpreter_alive() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsInitialized() && !Py_IsFinalizing();
#else
  return Py_IsInitialized() && !_Py_IsFinalizing();
#endif
}

} // namespace

Lock::Lock() {
  auto& mutex = recorder_mutex();
  if (mutex.try_lock()) {
    return;
  }
  if (interpreter_alive() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    mutex.lock();
    PyEval_RestoreThread(state);
  } else {
    mutex.lock();
  }
}

Lock::~Lock() {
  recorder_mutex().unlock();
}

void release_python(PyObject* object) {
  if (!interpreter_alive()) {
    return; // the process is ending, its memory goes as a whole
  }
  if (PyGILState_Check()) {
    Py_DECREF(object);
    return;
  }
  auto& list = released();
  std::lock_guard<std::mutex> guard(list.mutex);
  list.objects.push_back(object);
}

void drain_released() {
  auto& list = released();
  std::vector<PyObject*> objects;
  {
    std::lock_guard<std::mutex> guard(list.mutex);
    objects.swap(list.objects);
  }
  for (PyObject* object : objects) {
    Py_DECREF(object);
  }
}

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

Callbacks& callbacks() {
  static auto* table = new Callbacks;
  return *table;
}

Counters& counters() {
  static auto* table = new Counters;
  return *table;
}

} // namespace torchtpu

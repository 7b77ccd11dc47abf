#include "window.h"

#include "describe.h"
#include "device.h"

#include <torch/csrc/Exceptions.h>

#include <atomic>
#include <cstring>

namespace torchtpu {

namespace {

std::atomic<Mode> current_mode{Mode::Strict};
constexpr size_t kMaxChecks = 1024; // unread error flags before the oldest are looked at
constexpr size_t kMaxScalars = 4096; // cached scalar vectors

std::vector<std::unique_ptr<Recorder>>& recorders() {
  static auto* list = new std::vector<std::unique_ptr<Recorder>>(64);
  return *list;
}

// Gives the pending Python error the operation's details (operands and, in Debug, the user's line).
void explain_pending_error(const Signature& signature) {
  if (!callbacks().explain_failure || !signature.description) {
    return;
  }
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value && trace) {
    PyException_SetTraceback(value, trace);
  }
  PyObject* better =
      PyObject_CallFunctionObjArgs(callbacks().explain_failure.get(), value ? value : Py_None, signature.description.get(), nullptr);
  if (better) {
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(better)), better);
    Py_DECREF(better);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
  } else {
    PyErr_Clear();
    PyErr_Restore(type, value, trace);
  }
}

} // namespace

Mode mode() {
  return current_mode.load(std::memory_order_relaxed);
}

void set_mode(Mode mode) {
  if (mode != current_mode.load()) {
    cut_all("mode change");
    current_mode = mode;
    set_track_origins(mode == Mode::Debug);
  }
}

Policy& policy() {
  static auto* instance = new Policy;
  return *instance;
}

void Window::clear() {
  nodes.clear();
  codes.clear();
  key.clear();
  externals.clear();
  results.clear();
  floats.clear();
  ints.clear();
}

Recorder::Recorder(c10::DeviceIndex device) : device_(device) {
  window_.id = next_id_++;
}

size_t Recorder::programs() const {
  size_t n = 0;
  for (const auto& bucket : programs_) {
    n += bucket.second.size();
  }
  return n;
}

void Recorder::append(const Signature& signature, const Call& call, std::vector<ValuePtr>& fresh) {
  auto& w = window_;
  for (size_t i = 0; i < call.slots.size(); ++i) {
    if (signature.needs[i] && call.slots[i]->value && call.slots[i]->value->error) {
      TORCH_CHECK(false, "this tensor has no value, because the operation that makes it failed: ", *call.slots[i]->value->error);
    }
  }
  Node node{&signature, uint32_t(w.codes.size()), 0, uint32_t(w.results.size()), 0, uint32_t(w.floats.size()), uint32_t(w.ints.size())};
  w.key.push_back(signature.id);
  for (size_t i = 0; i < call.slots.size(); ++i) {
    if (!signature.needs[i]) {
      continue;
    }
    const auto& value = call.slots[i]->value;
    uint32_t code = kUninitialized;
    if (value) {
      if (value->window == w.id) {
        code = value->code;
      } else {
        TORCH_INTERNAL_ASSERT(value->array, "a value of another window has not been computed");
        code = external_code(uint32_t(w.externals.size()));
        value->window = w.id;
        value->code = code;
        w.externals.push_back(value);
      }
    }
    w.codes.push_back(code);
    w.key.push_back(code);
    node.codes += 1;
  }
  auto produce = [&](SpecId spec) {
    auto value = c10::make_intrusive<Value>(spec, device_);
    value->window = w.id;
    value->code = result_code(uint32_t(w.results.size()));
    w.results.push_back(value);
    node.results += 1;
    return value;
  };
  for (const auto& [slot, spec] : signature.writes) {
    call.slots[slot]->value = produce(spec);
  }
  for (const auto& result : signature.fresh) {
    if (result.defined) {
      fresh.push_back(produce(result.spec));
    }
  }
  w.floats.insert(w.floats.end(), call.floats.begin(), call.floats.end());
  w.ints.insert(w.ints.end(), call.ints.begin(), call.ints.end());
  w.nodes.push_back(node);
  counters().operations += 1;
}

void Recorder::operation_done() {
  switch (mode()) {
    case Mode::Fused:
      if (window_.nodes.size() >= policy().max_window) {
        flush("size limit");
      }
      return;
    case Mode::Strict:
      flush("strict");
      return;
    case Mode::Debug:
      flush("debug");
      wait();
      verify_checks();
  }
}

void Recorder::flush(const char* reason) {
  (void)reason;
  if (window_.nodes.empty()) {
    return;
  }
  Gil gil;
  drain_released();
  Window work;
  if (!spare_.empty()) {
    work = std::move(spare_.back());
    spare_.pop_back();
  }
  std::swap(work, window_);
  window_.clear();
  window_.id = next_id_++;
  counters().windows += 1;
  run(work);
  work.clear();
  if (spare_.size() < 4) {
    spare_.push_back(std::move(work));
  }
  if (checks_.size() > kMaxChecks) {
    verify_checks();
  }
}

Program& Recorder::program_for(const std::vector<uint64_t>& key) {
  auto& bucket = programs_[hash_words(key.data(), key.size())];
  for (auto& program : bucket) {
    if (program->key == key) {
      return *program;
    }
  }
  bucket.push_back(std::make_unique<Program>());
  bucket.back()->key = key;
  return *bucket.back();
}

// Runs a window that is no longer recorded into. On an error the results that could not be computed keep the reason,
// everything else keeps its value, and the error goes on.
void Recorder::run(Window& w) {
  std::vector<uint8_t> alive(w.results.size()), donated(w.externals.size());
  auto& key = w.key;
  key.push_back(~uint64_t(0));
  uint64_t word = 0;
  size_t filled = 0;
  auto push_bit = [&](bool bit) {
    word |= uint64_t(bit) << filled;
    if (++filled == 64) {
      key.push_back(word);
      word = filled = 0;
    }
  };
  for (size_t i = 0; i < w.results.size(); ++i) {
    alive[i] = w.results[i].use_count() > 1;
    push_bit(alive[i]);
  }
  for (size_t i = 0; i < w.externals.size(); ++i) {
    const auto& value = w.externals[i];
    donated[i] = value.use_count() == 1 && !value->exported;
    push_bit(donated[i]);
  }
  key.push_back(word);
  Program& program = program_for(key);
  program.seen += 1;
  const bool single = w.nodes.size() == 1;
  try {
    if (!program.call && !program.failed) {
      const bool wanted = single || mode() != Mode::Fused || program.seen >= policy().compile_at_sight;
      if (wanted && !program.object) {
        PyRef description = describe(w, alive, donated);
        PyObject* wait = single || !policy().background ? Py_True : Py_False;
        PyObject* object = PyObject_CallFunctionObjArgs(callbacks().build.get(), description.get(), wait, nullptr);
        if (object) {
          program.object = PyRef(object);
        } else {
          if (single) {
            explain_pending_error(*w.nodes[0].signature);
          }
          throw_python_error();
        }
      }
      if (program.object) {
        PyRef call = checked(PyObject_GetAttrString(program.object.get(), "call"));
        if (call.get() != Py_None) {
          PyRef checks = checked(PyObject_GetAttrString(program.object.get(), "has_checks"));
          program.has_checks = checks.get() == Py_True;
          program.call = std::move(call);
          if (single) {
            w.nodes[0].signature->check_free = !program.has_checks;
          }
        } else {
          PyRef failed = checked(PyObject_GetAttrString(program.object.get(), "failed"));
          program.failed = failed.get() == Py_True;
        }
      }
    } else if (program.call) {
      counters().hits += 1;
    }
    if (program.call) {
      run_whole(w, program, alive, donated);
    } else {
      run_parts(w);
    }
  } catch (const std::exception& error) {
    auto reason = std::make_shared<std::string>(error.what());
    for (auto& value : w.results) {
      if (!value->array && !value->error) {
        value->error = reason;
      }
    }
    if (single) {
      failed_codes_ = w.codes;
      failed_inputs_ = std::move(w.externals);
    }
    throw;
  }
}

void Recorder::restore(const Signature& signature, const Call& call) {
  size_t input = 0;
  for (size_t i = 0; i < call.slots.size(); ++i) {
    if (!signature.needs[i]) {
      continue;
    }
    const uint32_t code = input < failed_codes_.size() ? failed_codes_[input] : kUninitialized;
    ++input;
    auto& value = call.slots[i]->value;
    if (value && value->error && code != kUninitialized && !(code & 1) && (code >> 1) <= failed_inputs_.size()) {
      value = failed_inputs_[(code >> 1) - 1];
    }
  }
  failed_codes_.clear();
  failed_inputs_.clear();
}

bool Recorder::run_whole(Window& w, Program& program, const std::vector<uint8_t>& alive, const std::vector<uint8_t>&) {
  std::vector<PyObject*> arguments;
  arguments.reserve(w.externals.size() + 3);
  arguments.push_back(nullptr); // room that the vectorcall protocol may use
  for (const auto& value : w.externals) {
    TORCH_CHECK(value->array, "an input has no value", value->error ? ": " + *value->error : std::string());
    arguments.push_back(value->array.get());
  }
  PyRef kept_floats, kept_ints;
  if (!w.floats.empty()) {
    kept_floats = PyRef::borrow(scalars(w.floats.data(), w.floats.size(), true));
    arguments.push_back(kept_floats.get());
  }
  if (!w.ints.empty()) {
    kept_ints = PyRef::borrow(scalars(w.ints.data(), w.ints.size(), false));
    arguments.push_back(kept_ints.get());
  }
  PyObject* raw = PyObject_Vectorcall(
      program.call.get(), arguments.data() + 1, (arguments.size() - 1) | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!raw) {
    if (w.nodes.size() == 1) {
      explain_pending_error(*w.nodes[0].signature);
    }
    throw_python_error();
  }
  counters().programs_run += 1;
  PyRef out(raw);
  TORCH_INTERNAL_ASSERT(PyTuple_Check(raw) || PyList_Check(raw));
  PyObject** items = PySequence_Fast_ITEMS(raw);
  size_t next = 0;
  for (size_t i = 0; i < w.results.size(); ++i) {
    if (alive[i]) {
      w.results[i]->array = PyRef::borrow(items[next++]);
    }
  }
  if (next || program.has_checks) {
    last_ = PyRef::borrow(items[program.has_checks ? next : next - 1]);
  }
  if (program.has_checks) {
    checks_.emplace_back(PyRef::borrow(items[next]), PyRef::borrow(program.object.get()));
  }
  if (mode() == Mode::Debug && policy().nan_check && callbacks().nan_check && w.nodes.size() == 1) {
    checked(PyObject_CallFunctionObjArgs(callbacks().nan_check.get(), raw, w.nodes[0].signature->description.get(), nullptr));
  }
  return true;
}

// Runs a window's operations one by one, with the programs that Strict would use.
void Recorder::run_parts(Window& w) {
  struct Part {
    Node node;
    std::vector<ValuePtr> inputs, results; // a null input was never written
    std::vector<double> floats;
    std::vector<int64_t> ints;
  };
  std::vector<Part> parts;
  parts.reserve(w.nodes.size());
  for (size_t n = 0; n < w.nodes.size(); ++n) {
    const Node& node = w.nodes[n];
    Part part{node, {}, {}, {}, {}};
    for (uint32_t c = node.first_code; c < node.first_code + node.codes; ++c) {
      const uint32_t code = w.codes[c];
      part.inputs.push_back(
          code == kUninitialized ? ValuePtr() : code & 1 ? w.results[code >> 1] : w.externals[(code >> 1) - 1]);
    }
    part.results.assign(w.results.begin() + node.first_result, w.results.begin() + node.first_result + node.results);
    const bool last = n + 1 == w.nodes.size();
    part.floats.assign(w.floats.begin() + node.first_float, last ? w.floats.end() : w.floats.begin() + w.nodes[n + 1].first_float);
    part.ints.assign(w.ints.begin() + node.first_int, last ? w.ints.end() : w.ints.begin() + w.nodes[n + 1].first_int);
    parts.push_back(std::move(part));
  }
  w.results.clear();
  w.externals.clear();
  std::vector<uint8_t> dead(parts.size());
  for (size_t n = parts.size(); n-- > 0;) {
    dead[n] = parts[n].node.signature->check_free;
    for (const auto& value : parts[n].results) {
      dead[n] &= value.use_count() == 1;
    }
    if (dead[n]) {
      parts[n].inputs.clear(); // which may leave what made them dead too
    }
  }
  for (size_t n = 0; n < parts.size(); ++n) {
    if (dead[n]) {
      continue;
    }
    Part& part = parts[n];
    Window one;
    one.id = next_id_++;
    one.nodes.push_back({part.node.signature, 0, uint32_t(part.inputs.size()), 0, uint32_t(part.results.size()), 0, 0});
    one.key.push_back(part.node.signature->id);
    for (auto& value : part.inputs) {
      uint32_t code = kUninitialized;
      if (value) {
        if (value->window != one.id) {
          value->window = one.id;
          value->code = external_code(uint32_t(one.externals.size()));
          one.externals.push_back(value);
        }
        code = value->code;
      }
      one.codes.push_back(code);
      one.key.push_back(code);
    }
    part.inputs.clear();
    one.results = std::move(part.results);
    one.floats = std::move(part.floats);
    one.ints = std::move(part.ints);
    counters().launches_by_parts += 1;
    try {
      run(one);
    } catch (const std::exception& error) {
      auto reason = std::make_shared<std::string>(error.what());
      for (size_t later = n; later < parts.size(); ++later) {
        for (auto& value : parts[later].results) {
          value->error = reason;
        }
      }
      throw;
    }
  }
}

PyRef Recorder::describe(const Window& w, const std::vector<uint8_t>& alive, const std::vector<uint8_t>& donated) {
  auto bools = [](const std::vector<uint8_t>& flags) {
    PyRef tuple = checked(PyTuple_New(Py_ssize_t(flags.size())));
    for (size_t i = 0; i < flags.size(); ++i) {
      PyTuple_SET_ITEM(tuple.get(), Py_ssize_t(i), PyBool_FromLong(flags[i]));
    }
    return tuple;
  };
  PyRef nodes = checked(PyList_New(0));
  for (size_t n = 0; n < w.nodes.size(); ++n) {
    const Node& node = w.nodes[n];
    PyRef codes = checked(PyTuple_New(node.codes));
    for (uint32_t c = 0; c < node.codes; ++c) {
      PyTuple_SET_ITEM(codes.get(), c, PyLong_FromUnsignedLong(w.codes[node.first_code + c]));
    }
    PyRef item = checked(Py_BuildValue(
        "(OOII)", node.signature->description.get(), codes.get(), (unsigned)node.first_float, (unsigned)node.first_int));
    if (PyList_Append(nodes.get(), item.get()) < 0) {
      throw_python_error();
    }
  }
  PyRef externals = checked(PyList_New(0));
  for (const auto& value : w.externals) {
    const auto& spec = spec_of(value->spec);
    PyRef shape = to_python(spec.shape);
    PyRef dtype = to_python_dtype(spec.dtype);
    PyRef item = checked(PyTuple_Pack(2, dtype.get(), shape.get()));
    if (PyList_Append(externals.get(), item.get()) < 0) {
      throw_python_error();
    }
  }
  PyRef a = bools(alive), d = bools(donated);
  return checked(Py_BuildValue(
      "{s:O,s:O,s:O,s:O,s:n,s:n,s:i}", "nodes", nodes.get(), "externals", externals.get(), "alive", a.get(), "donated", d.get(),
      "floats", Py_ssize_t(w.floats.size()), "ints", Py_ssize_t(w.ints.size()), "device", int(device_)));
}

// A vector of scalar operands on the device. The same values come back often (a constant in a loop), so they are kept.
PyObject* Recorder::scalars(const void* data, size_t n, bool floating) {
  std::string key(static_cast<const char*>(data), n * 8);
  key.push_back(floating ? 'f' : 'i');
  auto it = scalar_cache_.find(key);
  if (it != scalar_cache_.end()) {
    return it->second.get();
  }
  if (scalar_cache_.size() >= kMaxScalars) {
    scalar_cache_.clear();
  }
  PyRef shape = to_python({int64_t(n)});
  PyRef array = checked(PyObject_CallFunction(
      callbacks().from_host.get(), "KnsOi", (unsigned long long)(uintptr_t)data, Py_ssize_t(n * 8), floating ? "float64" : "int64",
      shape.get(), int(device_)));
  return (scalar_cache_[key] = std::move(array)).get();
}

PyObject* Recorder::materialize(const ValuePtr& value) {
  if (!value->array && !value->error && value->window == window_.id) {
    flush("host read");
  }
  if (value->error) {
    TORCH_CHECK(false, "this tensor has no value, because the operation that makes it failed: ", *value->error);
  }
  TORCH_INTERNAL_ASSERT(value->array, "a value was never computed");
  return value->array.get();
}

void Recorder::verify_checks() {
  if (checks_.empty()) {
    return;
  }
  Gil gil;
  auto checks = std::move(checks_);
  checks_.clear();
  PyRef list = checked(PyList_New(0));
  for (const auto& [flags, program] : checks) {
    PyRef pair = checked(PyTuple_Pack(2, flags.get(), program.get()));
    PyList_Append(list.get(), pair.get());
  }
  checked(PyObject_CallFunctionObjArgs(callbacks().verify.get(), list.get(), nullptr));
}

void Recorder::wait() {
  if (!last_) {
    return;
  }
  Gil gil;
  PyRef array = PyRef::borrow(last_.get());
  checked(PyObject_CallMethod(array.get(), "block_until_ready", nullptr));
}

Recorder& recorder(c10::DeviceIndex device) {
  auto& entry = recorders().at(size_t(device));
  if (!entry) {
    checked_device(device);
    entry = std::make_unique<Recorder>(device);
  }
  return *entry;
}

bool recorder_exists(c10::DeviceIndex device) {
  return recorders().at(size_t(device)) != nullptr;
}

void cut(c10::DeviceIndex device, const char* reason) {
  Lock lock;
  if (recorder_exists(device)) {
    recorder(device).flush(reason);
  }
}

void cut_all(const char* reason) {
  Lock lock;
  for (size_t i = 0; i < recorders().size(); ++i) {
    if (recorders()[i]) {
      recorders()[i]->flush(reason);
    }
  }
}

void synchronize(c10::DeviceIndex device) {
  check_not_forked();
  Lock lock;
  if (recorder_exists(device)) {
    auto& r = recorder(device);
    r.flush("synchronize");
    r.wait();
    r.verify_checks();
  }
}

} // namespace torchtpu

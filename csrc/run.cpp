// Running a window: as one program, or operation by operation until that program exists.
#include "window.h"

#include "describe.h"

#include <torch/csrc/Exceptions.h>

#include <chrono>

namespace torchtpu {

namespace {

constexpr size_t kMaxScalars = 4096; // cached scalar vectors
constexpr size_t kMaxInFlight = 32; // windows that the device may be behind
constexpr size_t kMaxLog = 1024;

std::vector<WindowRecord>& log() {
  static auto* list = new std::vector<WindowRecord>;
  return *list;
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool is_deleted(PyObject* array) {
  PyRef answer = checked(PyObject_CallMethod(array, "is_deleted", nullptr));
  return answer.get() == Py_True;
}

// Whether a window that failed as a whole can run again from its parts: its inputs are there, and nobody interrupted.
bool replayable(const Window& w) {
  if (PyErr_CheckSignals() < 0) {
    throw_python_error();
  }
  return std::none_of(w.externals.begin(), w.externals.end(), [](const ValuePtr& v) { return !v->array || is_deleted(v->array.get()); });
}

uint64_t content_of(const Window& w) {
  uint64_t h = w.nodes.size();
  for (const auto& node : w.nodes) {
    h = (h ^ node.signature->mark) * 0xFF51AFD7ED558CCDull;
    for (uint32_t c = node.first_code; c < node.first_code + node.codes; ++c) {
      h = (h ^ w.codes[c]) * 0xC4CEB9FE1A85EC53ull;
    }
    h ^= h >> 32;
  }
  return h;
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

const std::vector<WindowRecord>& window_log() {
  return log();
}

void clear_window_log() {
  log().clear();
}

void Recorder::run(Window& w, const char* reason) {
  Gil gil;
  drain_released();
  counters().windows += 1;
  if (mode() != Mode::Fused) {
    run(w);
    return;
  }
  WindowRecord record{content_of(w), reason, "failed", uint32_t(w.nodes.size()), uint32_t(w.externals.size()),
                      uint32_t(w.results.size()), lane_, w.nodes[0].signature->info->name, now(), 0};
  auto finish = [&] {
    record.end = now();
    if (log().size() >= kMaxLog) {
      log().erase(log().begin(), log().begin() + kMaxLog / 2);
    }
    log().push_back(std::move(record));
  };
  try {
    record.how = run(w);
  } catch (const std::exception&) {
    finish();
    throw;
  }
  finish();
  hold_back();
}

// A program that is far ahead of the device waits for it: what is under way holds memory.
void Recorder::hold_back() {
  if (last_ && (in_flight_.empty() || in_flight_.back().get() != last_.get())) {
    in_flight_.push_back(PyRef::borrow(last_.get()));
  }
  while (in_flight_.size() > kMaxInFlight) {
    PyRef oldest = std::move(in_flight_.front());
    in_flight_.pop_front();
    if (!is_deleted(oldest.get())) {
      checked(PyObject_CallMethod(oldest.get(), "block_until_ready", nullptr));
    }
  }
}

// Runs a window that is no longer recorded into, and says how. On an error the results that could not be computed keep
// the reason, everything else keeps its value, and the error goes on.
const char* Recorder::run(Window& w) {
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
  const uint64_t hash = hash_words(key.data(), key.size());
  auto& programs = programs_of(device_);
  const bool single = w.nodes.size() == 1;
  try {
    ProgramPtr program = programs.find(hash, key);
    const char* how = "hit";
    if (program && program->call) {
      counters().hits += 1;
    } else {
      if (!program && (single || mode() != Mode::Fused || programs.see(hash) >= policy().compile_at_sight)) {
        program = programs.add(hash, key);
      }
      if (program && !program->object && !program->failed) {
        PyRef description = describe(w, alive, donated);
        PyObject* wait = single || !policy().background ? Py_True : Py_False;
        PyObject* object = PyObject_CallFunctionObjArgs(callbacks().build.get(), description.get(), wait, nullptr);
        if (!object) {
          if (single) {
            explain_pending_error(*w.nodes[0].signature);
          }
          throw_python_error();
        }
        program->object = PyRef(object);
        how = "compiled";
      }
      if (program && program->object && !program->failed) {
        PyRef call = checked(PyObject_GetAttrString(program->object.get(), "call"));
        if (call.get() != Py_None) {
          PyRef checks = checked(PyObject_GetAttrString(program->object.get(), "has_checks"));
          program->has_checks = checks.get() == Py_True;
          program->call = std::move(call);
          if (single) {
            w.nodes[0].signature->check_free = !program->has_checks;
          }
        } else {
          PyRef failed = checked(PyObject_GetAttrString(program->object.get(), "failed"));
          program->failed = failed.get() == Py_True;
        }
      }
    }
    if (!program || !program->call) {
      run_parts(w);
      return "parts";
    }
    if (single) {
      run_whole(w, *program, alive);
      return how;
    }
    try {
      run_whole(w, *program, alive);
      return how;
    } catch (const python_error& error) {
      if (!replayable(w)) {
        throw;
      }
    }
    run_parts(w); // which names the operation that fails
    return "parts";
  } catch (const std::exception& error) {
    fail(w, std::make_shared<std::string>(error.what()));
    throw;
  }
}

// After an error: storages that were to be changed in place have their old values back, other results keep the reason.
void Recorder::fail(Window& w, const std::shared_ptr<std::string>& reason) {
  std::vector<PyObject*> old(w.results.size(), nullptr);
  for (const auto& node : w.nodes) {
    if (node.first_result + node.results > w.results.size()) {
      return; // its parts have been dealt with
    }
    const auto& signature = *node.signature;
    for (uint32_t r = 0; r < node.results; ++r) {
      auto& value = w.results[node.first_result + r];
      if (value->array || value->error) {
        continue;
      }
      if (r < signature.writes.size()) {
        uint32_t at = node.first_code;
        const uint32_t slot = signature.writes[r].first;
        for (uint32_t s = 0; s < slot; ++s) {
          at += signature.needs[s];
        }
        if (signature.needs[slot]) {
          const uint32_t code = w.codes[at];
          const ValuePtr* source = code & 1 ? nullptr : code ? &w.externals[(code >> 1) - 1] : nullptr;
          PyObject* array = code & 1 ? old[code >> 1] : source ? (*source)->array.get() : nullptr;
          const SpecId spec = code & 1 ? w.results[code >> 1]->spec : source ? (*source)->spec : 0;
          if (array && spec == value->spec && !is_deleted(array)) {
            old[node.first_result + r] = array;
            value->array = PyRef::borrow(array);
            continue;
          }
        }
      }
      value->error = reason;
    }
  }
}

void Recorder::run_whole(Window& w, Program& program, const std::vector<uint8_t>& alive) {
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
}

// Runs a window's operations one by one, with the programs that Strict would use. One that fails does not keep others,
// which don't depend on it, from running.
void Recorder::run_parts(Window& w) {
  struct Part {
    Node node;
    std::vector<ValuePtr> inputs, results; // a null input was never written
    const double* floats;
    const int64_t* ints;
    size_t n_floats, n_ints;
  };
  std::vector<Part> parts;
  parts.reserve(w.nodes.size());
  for (size_t n = 0; n < w.nodes.size(); ++n) {
    const Node& node = w.nodes[n];
    Part part{node, {}, {}, nullptr, nullptr, 0, 0};
    part.inputs.reserve(node.codes);
    for (uint32_t c = node.first_code; c < node.first_code + node.codes; ++c) {
      const uint32_t code = w.codes[c];
      part.inputs.push_back(
          code == kUninitialized ? ValuePtr() : code & 1 ? w.results[code >> 1] : w.externals[(code >> 1) - 1]);
    }
    part.results.assign(w.results.begin() + node.first_result, w.results.begin() + node.first_result + node.results);
    const bool last = n + 1 == w.nodes.size();
    part.floats = w.floats.data() + node.first_float;
    part.n_floats = (last ? w.floats.size() : w.nodes[n + 1].first_float) - node.first_float;
    part.ints = w.ints.data() + node.first_int;
    part.n_ints = (last ? w.ints.size() : w.nodes[n + 1].first_int) - node.first_int;
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
  std::exception_ptr failure;
  std::shared_ptr<std::string> reason;
  std::vector<ValuePtr> spoiled; // results of what failed, although some have an older value
  Window one;
  for (size_t n = 0; n < parts.size(); ++n) {
    if (dead[n]) {
      continue;
    }
    Part& part = parts[n];
    one.clear();
    one.id = Window::number();
    one.nodes.push_back({part.node.signature, 0, uint32_t(part.inputs.size()), 0, uint32_t(part.results.size()), 0, 0});
    one.key.push_back(part.node.signature->id);
    bool runs = true;
    for (const auto& value : part.inputs) {
      runs = runs && !(failure && value && (value->error || std::find(spoiled.begin(), spoiled.end(), value) != spoiled.end()));
      const uint32_t code = one.input(value);
      one.codes.push_back(code);
      one.key.push_back(code);
    }
    part.inputs.clear();
    one.results = std::move(part.results);
    one.floats.assign(part.floats, part.floats + part.n_floats);
    one.ints.assign(part.ints, part.ints + part.n_ints);
    counters().launches_by_parts += 1;
    try {
      if (runs) {
        run(one);
      } else {
        fail(one, reason);
      }
    } catch (const std::exception& error) {
      runs = false;
      if (!failure) {
        failure = std::current_exception();
        reason = std::make_shared<std::string>(error.what());
      }
    }
    if (!runs) {
      spoiled.insert(spoiled.end(), one.results.begin(), one.results.end());
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
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
  if (is_deleted(array.get())) { // donated since, to something that nobody waits for
    return;
  }
  checked(PyObject_CallMethod(array.get(), "block_until_ready", nullptr));
}

} // namespace torchtpu

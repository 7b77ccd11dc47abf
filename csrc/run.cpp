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

namespace {

// Which results somebody still holds and which inputs nobody else does; ends the window's key.
struct Fate {
  std::vector<uint8_t> alive, donated;
};

void end_key(Window& w, const Fate& fate) {
  auto& key = w.key;
  key.push_back(~uint64_t(0));
  uint64_t word = 0;
  size_t filled = 0;
  for (const auto* flags : {&fate.alive, &fate.donated}) {
    for (const uint8_t flag : *flags) {
      word |= uint64_t(flag) << filled;
      if (++filled == 64) {
        key.push_back(word);
        word = filled = 0;
      }
    }
  }
  key.push_back(word);
}

Fate fate_of(const Window& w) {
  Fate fate{std::vector<uint8_t>(w.results.size()), std::vector<uint8_t>(w.externals.size())};
  for (size_t i = 0; i < w.results.size(); ++i) {
    fate.alive[i] = w.results[i].use_count() > 1;
  }
  for (size_t i = 0; i < w.externals.size(); ++i) {
    fate.donated[i] = w.externals[i].use_count() == 1 && !w.externals[i]->exported;
  }
  return fate;
}

} // namespace

// Takes over what Python knows of a program.
void Recorder::adopt(Program& program, PyObject* object, const Window& w) {
  auto flag = [&](const char* name) { return checked(PyObject_GetAttrString(object, name)).get() == Py_True; };
  PyRef call = checked(PyObject_GetAttrString(object, "call"));
  if (call.get() == Py_None) {
    program.failed = flag("failed");
    return;
  }
  program.has_checks = flag("has_checks");
  program.quick = flag("quick");
  program.call = std::move(call);
  if (w.nodes.size() == 1) {
    w.nodes[0].signature->check_free = !program.has_checks;
    w.nodes[0].signature->built = true;
  }
}

// Runs a window that is no longer recorded into, and says how. On an error the results that could not be computed keep
// the reason, everything else keeps its value, and the error goes on.
const char* Recorder::run(Window& w) {
  const Fate fate = fate_of(w);
  const auto& [alive, donated] = fate;
  end_key(w, fate);
  const auto& key = w.key;
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
        adopt(*program, program->object.get(), w);
      }
    }
    if (program && program->quick && mode() == Mode::Fused) {
      const uint32_t often = running_parts_ ? 2048 : 64; // parts soon give way to the whole, which compiles first
      program->runs += 1;
      if (program->runs == often) {
        checked(PyObject_CallFunctionObjArgs(callbacks().improve.get(), program->object.get(), nullptr));
      } else if (program->runs % often == 0) {
        adopt(*program, program->object.get(), w);
      }
    }
    if (!program || !program->call) {
      run_parts(w);
      return "parts";
    }
    try {
      run_whole(w, *program, alive);
      return how;
    } catch (const python_error& error) {
      if (single || !replayable(w)) {
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

// Compiles, side by side, what windows of one operation need and nobody has run yet. `parts` hold all references to
// values that no tensor holds, so what each will be given and leave behind is known now.
void Recorder::build_parts(std::vector<Window>& parts) {
  struct Held {
    uint32_t later = 0; // references from parts that have not run
    uint32_t all = 0;
  };
  std::unordered_map<const Value*, Held> held;
  auto count = [&](const Window& part, int32_t sign) {
    for (const auto* list : {&part.externals, &part.results}) {
      for (const auto& value : *list) {
        held[value.get()].later += sign;
        held[value.get()].all += sign > 0;
      }
    }
  };
  for (const auto& part : parts) {
    count(part, 1);
  }
  auto& programs = programs_of(device_);
  std::vector<std::pair<ProgramPtr, const Window*>> wanted;
  PyRef descriptions = checked(PyList_New(0));
  for (const auto& part : parts) {
    count(part, -1);
    if (part.nodes.empty() || part.nodes[0].signature->built) {
      continue;
    }
    Fate fate = fate_of(part);
    for (size_t i = 0; i < part.externals.size(); ++i) {
      const auto& value = part.externals[i];
      const auto& h = held[value.get()];
      fate.donated[i] = value.use_count() == h.all && h.later == 0 && !value->exported;
    }
    Window described;
    described.nodes = part.nodes;
    described.key = part.key;
    end_key(described, fate);
    const uint64_t hash = hash_words(described.key.data(), described.key.size());
    if (programs.find(hash, described.key)) {
      continue;
    }
    PyRef description = describe(part, fate.alive, fate.donated);
    if (PyList_Append(descriptions.get(), description.get()) < 0) {
      throw_python_error();
    }
    wanted.emplace_back(programs.add(hash, described.key), &part);
  }
  if (wanted.empty()) {
    return;
  }
  PyRef objects = checked(PyObject_CallFunctionObjArgs(callbacks().build_parts.get(), descriptions.get(), nullptr));
  for (size_t i = 0; i < wanted.size(); ++i) {
    PyObject* object = PyList_GetItem(objects.get(), Py_ssize_t(i));
    if (object && object != Py_None) {
      wanted[i].first->object = PyRef::borrow(object);
      adopt(*wanted[i].first, object, *wanted[i].second);
    }
  }
}

// Runs a window's operations one by one, with programs of their own. One that fails does not keep others, which don't
// depend on it, from running.
void Recorder::run_parts(Window& w) {
  std::vector<uint8_t> dead(w.nodes.size());
  {
    // What nobody needs is left out, and then what only it needed.
    std::vector<uint32_t> uses(w.results.size());
    for (const uint32_t code : w.codes) {
      uses[code >> 1] += code & 1;
    }
    for (size_t n = w.nodes.size(); n-- > 0;) {
      const Node& node = w.nodes[n];
      dead[n] = node.signature->check_free;
      for (uint32_t r = node.first_result; r < node.first_result + node.results; ++r) {
        dead[n] &= uses[r] == 0 && w.results[r].use_count() == 1;
      }
      for (uint32_t c = node.first_code; dead[n] && c < node.first_code + node.codes; ++c) {
        uses[w.codes[c] >> 1] -= w.codes[c] & 1;
      }
    }
  }
  std::vector<Window> parts(w.nodes.size());
  bool all_built = true;
  for (size_t n = 0; n < w.nodes.size(); ++n) {
    if (dead[n]) {
      continue;
    }
    parts[n].take(w, n, n + 1);
    all_built = all_built && w.nodes[n].signature->built;
  }
  w.results.clear();
  w.externals.clear();
  if (!all_built) {
    build_parts(parts);
  }
  std::exception_ptr failure;
  std::shared_ptr<std::string> reason;
  std::vector<ValuePtr> spoiled; // results of what failed, although some have an older value
  struct Flag {
    bool& flag;
    bool before;
    ~Flag() {
      flag = before;
    }
  } restore{running_parts_, std::exchange(running_parts_, true)};
  for (size_t n = 0; n < parts.size(); ++n) {
    if (dead[n]) {
      continue;
    }
    Window one = std::move(parts[n]);
    bool runs = true;
    for (const auto& value : one.externals) {
      runs = runs && !(failure && (value->error || std::find(spoiled.begin(), spoiled.end(), value) != spoiled.end()));
    }
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

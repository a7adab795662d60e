// A c10d backend that records, then forwards.
//
// PyTorch writes `record_param_comms` events (collective name, process group, element counts, dtype, splits) only from
// the backends that call its macro, and gloo does not. This backend wraps any other one, calls the macro the way
// torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp does, and passes the call on. The profiler's own code then writes
// the metadata, so a gloo trace carries the keys of an NCCL trace.

#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ParamCommsUtils.hpp>

#include <numeric>

namespace {

using at::Tensor;
using c10d::Backend;
using c10d::Work;
using Tensors = std::vector<Tensor>;
using Splits = std::vector<int64_t>;
using WorkPtr = c10::intrusive_ptr<Work>;

int64_t elements(const Tensors& tensors) {
  return std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, [](int64_t n, const Tensor& t) {
    return n + t.numel();
  });
}

Splits elements_each(const Tensors& tensors) {
  Splits counts;
  counts.reserve(tensors.size());
  for (const auto& tensor : tensors) {
    counts.push_back(tensor.numel());
  }
  return counts;
}

// Distance between neighbouring global ranks; 0 for a group of one, -1 where the distances differ. The default group
// comes without a list: its ranks are all of them.
int stride_of(const std::vector<int64_t>& ranks) {
  if (ranks.empty()) {
    return 1;
  }
  if (ranks.size() == 1) {
    return 0;
  }
  const auto stride = ranks[1] - ranks[0];
  for (size_t i = 2; i < ranks.size(); ++i) {
    if (ranks[i] - ranks[i - 1] != stride) {
      return -1;
    }
  }
  return static_cast<int>(stride);
}

// What the macro wants to know of one call. `rank` is the root of rooted collectives and the peer of send and recv.
struct Call {
  const char* name;
  int rank;
  int64_t in_elements;
  int64_t out_elements;
  at::ScalarType dtype;
  bool is_async = true;
  bool point_to_point = false;
  Splits in_splits = {};
  Splits out_splits = {};
};

class RecordingBackend : public Backend {
 public:
  RecordingBackend(c10::intrusive_ptr<Backend> inner, std::string name, const std::vector<int64_t>& ranks)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        name_(std::move(name)),
        start_(ranks.empty() ? 0 : static_cast<int>(ranks.front())),
        stride_(stride_of(ranks)) {}

  const std::string getBackendName() const override {
    return name_;
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return inner_->getBackendOptions();
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
  }
  void setSequenceNumberForGroup() override {
    inner_->setSequenceNumberForGroup();
  }
  uint64_t getSequenceNumberForGroup() override {
    return inner_->getSequenceNumberForGroup();
  }
  void monitoredBarrier(const c10d::BarrierOptions& opts, bool wait_all_ranks) override {
    inner_->monitoredBarrier(opts, wait_all_ranks);
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    const auto n = tensors.at(0).numel();
    return recorded({"allreduce", rank_, n, n, tensors[0].scalar_type(), opts.asyncOp}, tensors, tensors, [&] {
      return inner_->allreduce(tensors, opts);
    });
  }

  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    const auto n = elements(tensors);
    return recorded(
        {"allreduce_coalesced", rank_, n, n, tensors.at(0).scalar_type(), opts.asyncOp}, tensors, tensors, [&] {
          return inner_->allreduce_coalesced(tensors, opts);
        });
  }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    const auto n = tensors.at(0).numel();
    const auto root = static_cast<int>(opts.rootRank);
    return recorded({"broadcast", root, n, n, tensors[0].scalar_type(), opts.asyncOp}, tensors, tensors, [&] {
      return inner_->broadcast(tensors, opts);
    });
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    const auto n = tensors.at(0).numel();
    const auto root = static_cast<int>(opts.rootRank);
    return recorded({"reduce", root, n, n, tensors[0].scalar_type(), opts.asyncOp}, tensors, tensors, [&] {
      return inner_->reduce(tensors, opts);
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outs, Tensors& ins, const c10d::AllgatherOptions& opts) override {
    const auto n = ins.at(0).numel();
    return recorded(
        {"all_gather", rank_, n, n * size_, ins[0].scalar_type(), opts.asyncOp}, ins, outs.at(0), [&] {
          return inner_->allgather(outs, ins, opts);
        });
  }

  WorkPtr _allgather_base(Tensor& out, Tensor& in, const c10d::AllgatherOptions& opts) override {
    return recorded({"_allgather_base", rank_, in.numel(), out.numel(), in.scalar_type(), opts.asyncOp}, in, out, [&] {
      return inner_->_allgather_base(out, in, opts);
    });
  }

  WorkPtr allgather_into_tensor_coalesced(
      Tensors& outs, Tensors& ins, const c10d::AllgatherOptions& opts) override {
    return recorded(
        {"allgather_into_tensor_coalesced",
         rank_,
         elements(ins),
         elements(outs),
         ins.at(0).scalar_type(),
         opts.asyncOp},
        ins,
        outs,
        [&] { return inner_->allgather_into_tensor_coalesced(outs, ins, opts); });
  }

  WorkPtr reduce_scatter(Tensors& outs, std::vector<Tensors>& ins, const c10d::ReduceScatterOptions& opts) override {
    const auto n = outs.at(0).numel();
    return recorded(
        {"reduce_scatter", rank_, n * size_, n, outs[0].scalar_type(), opts.asyncOp}, ins.at(0), outs, [&] {
          return inner_->reduce_scatter(outs, ins, opts);
        });
  }

  WorkPtr _reduce_scatter_base(Tensor& out, Tensor& in, const c10d::ReduceScatterOptions& opts) override {
    return recorded(
        {"_reduce_scatter_base", rank_, in.numel(), out.numel(), out.scalar_type(), opts.asyncOp}, in, out, [&] {
          return inner_->_reduce_scatter_base(out, in, opts);
        });
  }

  WorkPtr reduce_scatter_tensor_coalesced(
      Tensors& outs, Tensors& ins, const c10d::ReduceScatterOptions& opts) override {
    return recorded(
        {"reduce_scatter_tensor_coalesced",
         rank_,
         elements(ins),
         elements(outs),
         ins.at(0).scalar_type(),
         opts.asyncOp},
        ins,
        outs,
        [&] { return inner_->reduce_scatter_tensor_coalesced(outs, ins, opts); });
  }

  WorkPtr alltoall_base(
      Tensor& out, Tensor& in, Splits& out_splits, Splits& in_splits, const c10d::AllToAllOptions& opts) override {
    const bool equal = in_splits.empty() && out_splits.empty();
    Call call{
        equal ? "all_to_all" : "all_to_allv", rank_, in.numel(), out.numel(), in.scalar_type(), opts.asyncOp};
    call.in_splits = in_splits;
    call.out_splits = out_splits;
    return recorded(call, in, out, [&] { return inner_->alltoall_base(out, in, out_splits, in_splits, opts); });
  }

  WorkPtr alltoall(Tensors& outs, Tensors& ins, const c10d::AllToAllOptions& opts) override {
    Call call{"all_to_all", rank_, elements(ins), elements(outs), ins.at(0).scalar_type(), opts.asyncOp};
    call.in_splits = elements_each(ins);
    call.out_splits = elements_each(outs);
    return recorded(call, ins, outs, [&] { return inner_->alltoall(outs, ins, opts); });
  }

  WorkPtr gather(std::vector<Tensors>& outs, Tensors& ins, const c10d::GatherOptions& opts) override {
    const auto n = ins.at(0).numel();
    const auto root = static_cast<int>(opts.rootRank);
    return recorded({"gather", root, n, n * size_, ins[0].scalar_type(), opts.asyncOp}, ins, ins, [&] {
      return inner_->gather(outs, ins, opts);
    });
  }

  WorkPtr scatter(Tensors& outs, std::vector<Tensors>& ins, const c10d::ScatterOptions& opts) override {
    const auto n = outs.at(0).numel();
    const auto root = static_cast<int>(opts.rootRank);
    return recorded({"scatter", root, n * size_, n, outs[0].scalar_type(), opts.asyncOp}, outs, outs, [&] {
      return inner_->scatter(outs, ins, opts);
    });
  }

  WorkPtr send(Tensors& tensors, int peer, int tag) override {
    const auto n = tensors.at(0).numel();
    return recorded({"send", peer, n, n, tensors[0].scalar_type(), true, true}, tensors, tensors, [&] {
      return inner_->send(tensors, peer, tag);
    });
  }

  WorkPtr recv(Tensors& tensors, int peer, int tag) override {
    const auto n = tensors.at(0).numel();
    return recorded({"recv", peer, n, n, tensors[0].scalar_type(), true, true}, tensors, tensors, [&] {
      return inner_->recv(tensors, peer, tag);
    });
  }

  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return inner_->recvAnysource(tensors, tag);
  }

  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    RECORD_PARAM_COMMS(
        std::make_tuple(++collectives_, false),
        std::make_tuple(pg_uid_, pg_desc_),
        rank_,
        "barrier",
        0,
        0,
        at::kByte,
        Splits(),
        Splits(),
        start_,
        stride_,
        size_);
    return inner_->barrier(opts);
  }

 private:
  // Opens the record, makes the call and closes the record when the call has been issued.
  template <typename In, typename Out, typename Forward>
  WorkPtr recorded(const Call& call, const In& in, const Out& out, Forward&& forward) {
    const int64_t sequence = call.point_to_point ? ++point_to_points_ : ++collectives_;
    RECORD_PARAM_COMMS_DATA_WITH_ASYNC_OP(
        std::make_tuple(sequence, call.point_to_point),
        std::make_tuple(pg_uid_, pg_desc_),
        in,
        out,
        call.rank,
        call.name,
        call.in_elements,
        call.out_elements,
        call.dtype,
        call.in_splits,
        call.out_splits,
        start_,
        stride_,
        size_,
        call.is_async);
    return forward();
  }

  const c10::intrusive_ptr<Backend> inner_;
  const std::string name_;
  const int start_;
  const int stride_;
  int64_t collectives_ = 0;
  int64_t point_to_points_ = 0;
};

c10::intrusive_ptr<Backend> wrap(
    c10::intrusive_ptr<Backend> inner, const std::string& name, const std::vector<int64_t>& ranks) {
  return c10::make_intrusive<RecordingBackend>(std::move(inner), name, ranks);
}

} // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  module.def("wrap", &wrap, py::arg("inner"), py::arg("name"), py::arg("ranks"));
}

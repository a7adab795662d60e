"""Kernel names: which library, which primitive, and what a name must not be believed for."""

from __future__ import annotations

from pathlib import Path

import pytest

from heuristics.kernel_table import PRIMITIVES, KernelTable
from ledger.collectives import PRIMITIVES as LEDGER_PRIMITIVES
from parsers.errors import InputError

TABLE = KernelTable.default()

# Names from libnccl 2.27.5's symbols, from public traces, and from the libraries' sources.
NAMES = [
    ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "all_reduce", "bfloat16"),
    (
        "ncclDevKernel_AllReduce_Sum_f32_TREE_LL(ncclDevComm*, unsigned long, ncclWork*)",
        "nccl",
        "all_reduce",
        "float32",
    ),
    ("ncclDevKernel_ReduceScatter_Sum_f8e4m3_RING_LL", "nccl", "reduce_scatter", "float8_e4m3fn"),
    ("ncclDevKernel_Reduce_Sum_f16_RING_LL", "nccl", "reduce", "float16"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "nccl", "all_gather", None),
    ("ncclDevKernel_AllGatherV_RING_LL", "nccl", "all_gather", None),
    ("ncclDevKernel_Broadcast_RING_LL", "nccl", "broadcast", None),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "nccl", "send_recv", None),
    ("nccldevkernel_allreduce_sum_bf16_ring_ll", "nccl", "all_reduce", "bfloat16"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "nccl", "all_reduce", "float32"),
    ("ncclKernel_AllReduce_TREE_LL_Sum_half", "nccl", "all_reduce", "float16"),
    ("void ncclKernel_AllReduce<float>(x)", "nccl", "all_reduce", None),
    ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "nccl", "send_recv", None),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "nccl", "all_reduce", "float32"),
    ("ncclSendRecvKernel_copy_i8(ncclColl)", "nccl", "send_recv", None),
    ("ncclSymDevKernel_AllGather_STMC", "nccl", "all_gather", None),
    ("ncclSymDevKernel_AllReduce_AGxLLMC_R_sum_bf16", "nccl", "all_reduce", "bfloat16"),
    ("ncclSymkDevKernel_ReduceScatter_RailA2A_LsaLDMC_avg_f16", "nccl", "reduce_scatter", "float16"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "rccl", None, None),
    ("rcclGenericKernel", "rccl", None, None),
    ("mscclKernel_Sum_float_LL_false(x)", "msccl", None, "float32"),
    ("allreduceAllPairs<x>(x)", "mscclpp", "all_reduce", None),
    ("void aiter::cross_device_reduce_2stage<x>", "custom_all_reduce", "all_reduce", None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(x)", "custom_all_reduce", "all_reduce", "bfloat16"),
    ("void vllm::mnnvl_lamport_reduce_scatter_kernel<x>", "custom_all_reduce", "reduce_scatter", None),
    ("void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half>>(x)", "quick_reduce", "all_reduce", None),
    ("void (anonymous namespace)::all_reduce_two_shot_kernel<x>", "custom_all_reduce", "all_reduce", None),
    (
        "void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>"
        "((anonymous namespace)::AllReducePushData, device::distributed::PushController)",
        "custom_all_reduce",
        "all_reduce",
        "bfloat16",
    ),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<x>", "torch_symm_mem", "all_reduce", None),
    (
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)",
        "torch_symm_mem",
        "all_reduce",
        "bfloat16",
    ),
    ("void deep_ep::internode_ll::combine<3, 10, 7168, 9>(void*)", "deep_ep", "all_to_all", None),
    ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*)", "deep_ep", "all_to_all", None),
    ("void deep_ep::elastic::pp_send_impl<x>", "deep_ep", "send_recv", None),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8, x>(x)", "userbuffers", "reduce_scatter", None),
    ("userbuffers_fp16_sum_inplace_gpu_mc_ag(int)", "userbuffers", "all_gather", None),
    ("userbuffers_fp16_sum_inplace_gpu_rr", "userbuffers", "all_reduce", None),
    ("kuserbuffers_pushrecv(int)", "userbuffers", "send_recv", None),
    ("nvshmem_put", "nvshmem", "send_recv", None),
    ("allToAllV_2d(x)", "nvshmem", "all_to_all", None),
    ("_mxfp8_all_to_all_expert_major_kernel", "torchao", "all_to_all", None),
    ("_combine_all_to_all_kernel", "torchao", "all_to_all", None),
    ("EpDispatchInterNodeV1Kernel<x>", "mori", "all_to_all", None),
    ("hcom_allReduce__428_0_1", "hccl", "all_reduce", None),
    ("hcom_alltoallv_", "hccl", "all_to_all", None),
    ("oneccl_allreduce", "oneccl", "all_reduce", None),
    ("Memcpy PtoP (Device -> Device)", "copy_engine", "send_recv", None),
]


@pytest.mark.parametrize(("name", "library", "primitive", "dtype"), NAMES, ids=[name[:50] for name, *_ in NAMES])
def test_names_of_communication_libraries_are_known(
    name: str, library: str, primitive: str | None, dtype: str | None
) -> None:
    found = TABLE.kernel(name)
    assert found is not None
    assert (found.library, found.primitive, found.dtype, found.role) == (library, primitive, dtype, "payload")


@pytest.mark.parametrize(
    "name",
    [
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(x)",
        "void at::native::vectorized_gather_kernel<16, long>(char*, char*)",
        "triton_red_fused_all_reduce_kernel_0x",
        "triton_poi_fused_all_gather_into_tensor_mul_3",
        "void cuda::get_fused_mapping<512>(x)",
        "void SyncBatchNormForwardKernel(x)",
        "cutlass_tma_dma_gemm",
        "hipcub::DeviceReduceKernel",
        "void flash::flash_fwd_splitkv_combine_kernel<x>(x)",
        "Memcpy DtoD (Device -> Device)",
        "_precompute_combine_offsets_kernel",
    ],
)
def test_compute_with_words_of_communication_is_not_communication(name: str) -> None:
    assert TABLE.kernel(name) is None


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("void deep_ep::intranode::notify_dispatch<8>(int const*)", "sync"),
        ("void dpsk::ep::internode::cached_notify<false>(int)", "sync"),
        ("void (anonymous namespace)::put_signal_kernel(unsigned int**, int)", "sync"),
        ("void c10d::symmetric_memory::barrier_kernel(unsigned int**)", "sync"),
        ("exchangeSplitAndOffset(long*)", "sync"),
        ("void hybrid_ep::device_sync_kernel<x>", "sync"),
        ("void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(x)", "pack"),
        ("void oneRankReduce<x>(void*)", "pack"),
    ],
)
def test_kernels_that_move_no_payload_have_their_own_role(name: str, role: str) -> None:
    found = TABLE.kernel(name)
    assert found is not None
    assert found.role == role


def test_template_arguments_give_the_group_size() -> None:
    custom = TABLE.kernel("void sglang::cross_device_reduce_2stage<__nv_bfloat16, 8>(sglang::RankData*)")
    fused = TABLE.kernel(
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 4, false, false>(x)"
    )
    assert custom is not None
    assert custom.ranks == 8
    assert fused is not None
    assert (fused.ranks, fused.dtype) == (4, "bfloat16")


def test_integers_print_as_unsigned_and_are_not_believed() -> None:
    found = TABLE.kernel("ncclDevKernel_AllReduce_Sum_u64_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    assert found is not None
    assert (found.primitive, found.dtype) == ("all_reduce", None)


def test_every_kernel_of_libnccl_2_27_5_is_known(shared: Path) -> None:
    text = (shared / "reference" / "nccl_2.27.5_kernel_names.txt").read_text()
    names = [name for name in text.split() if name.startswith("nccl")]
    found = {name: TABLE.kernel(name) for name in names}
    unknown = [name for name, kernel in found.items() if kernel is None or kernel.primitive is None]
    assert len(names) == 79
    assert unknown == ["ncclDevKernel_Generic"]


@pytest.mark.parametrize(
    "name",
    [
        "nvshmem_" * 20_000,
        "_" + "a_" * 50_000 + "all_to_all_",
        "EpDispatchIntraNode" * 10_000,
        "void " + "(anonymous namespace)::" * 5_000 + "barrier_kernel",
        "allreduce_fusion_kernel_oneshot_lamport<" * 5_000,
    ],
    ids=["nvshmem", "underscores", "mori", "namespaces", "templates"],
)
def test_only_the_beginning_of_a_hostile_name_is_looked_at(name: str) -> None:
    assert TABLE.kernel(name) == TABLE.kernel(name[:1024])


def test_a_user_table_extends_and_overrides(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        """
        [[kernel]]
        match = '^my_ring_(?P<word>allgather|reduce_scatter)'
        library = "mine"
        [[kernel]]
        match = 'cross_device_reduce'
        role = "none"
        [[operator]]
        names = ["mine::gather_all"]
        primitive = "all_gather"
        tensors = "input"
        """
    )
    table = KernelTable.load(path)
    mine = table.kernel("my_ring_allgather<float>")
    assert mine is not None
    assert (mine.library, mine.primitive) == ("mine", "all_gather")
    assert table.kernel("void vllm::cross_device_reduce_1stage<float, 2>(x)") is None
    operator = table.operator("mine::gather_all")
    assert operator is not None
    assert operator.primitive == "all_gather"
    assert table.kernel("ncclDevKernel_SendRecv") == TABLE.kernel("ncclDevKernel_SendRecv")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[kernel", "not TOML"),
        ("[[kernels]]\nmatch = 'x'", "unknown key 'kernels'"),
        ("kernel = 3", "kernel must be a list of tables"),
        ("[[kernel]]\nlibrary = 'x'", "match is missing"),
        ("[[kernel]]\nmatch = '('", "not a regular expression"),
        ("[[kernel]]\nmatch = 'x'\nprimitive = 'allreduce'", "primitive is 'allreduce'"),
        ("[[kernel]]\nmatch = 'x'\nrole = 'fast'", "role is 'fast'"),
        ("[[kernel]]\nmatch = 'x'\nprimtive = 'all_reduce'", "unknown key 'primtive'"),
        ("[[operator]]\nprimitive = 'all_reduce'", "names must be a list of texts"),
        ("[[operator]]\nnames = ['x']", "primitive is None"),
        ("[[operator]]\nnames = ['x']\nprimitive = 'all_reduce'\nroot = 'first'", "root must be a position"),
        ("[words]\nallred = 'all_red'", "primitive of the word 'allred' is 'all_red'"),
    ],
)
def test_a_faulty_user_table_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        KernelTable.load(path)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_user_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read the kernel table"):
        KernelTable.load(tmp_path / "absent.toml")


@pytest.mark.parametrize(
    ("name", "primitive", "direction"),
    [
        ("nccl:send 0->1", "send_recv", "send"),
        ("nccl:recv 1<-0", "send_recv", "recv"),
        ("gloo:all_to_all", "all_to_all", None),
        ("nccl:ALLGATHER_coalesced", "all_gather", None),
        ("nccl:all_reduce_barrier", "barrier", None),
        ("c10d::_allgather_base_", "all_gather", None),
        ("_c10d_functional::reduce_scatter_tensor", "reduce_scatter", None),
        ("ncclAllReduce", "all_reduce", None),
    ],
)
def test_operators_annotations_and_ranges_are_looked_up(name: str, primitive: str, direction: str | None) -> None:
    found = TABLE.operator(name)
    assert found is not None
    assert (found.primitive, found.direction) == (primitive, direction)


def test_primitives_are_those_of_the_ledger() -> None:
    assert set(PRIMITIVES) == set(LEDGER_PRIMITIVES)

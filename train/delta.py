"""The gated delta rule of delta.c as an operation of torch, for training on a processor."""
import ctypes
import os
import subprocess
import tempfile

import torch

DIM, CHUNK = 32, 32     # as in delta.c
_lib = None


class Shape(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int) for n in ("batch", "rows", "k_heads", "v_heads")]


class Grads(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in ("q", "k", "v", "beta", "g")]


def lib():
    """delta.c, compiled for this machine"""
    global _lib
    if _lib is None:
        here, at = os.path.dirname(os.path.abspath(__file__)), tempfile.mkdtemp()
        subprocess.run(["cc", "-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC", "-o", at + "/delta.so", here + "/delta.c", "-lm"], check=True)
        _lib = ctypes.CDLL(at + "/delta.so")
    return _lib


def shape_of(q, v):
    return Shape(q.shape[0], q.shape[1], q.shape[2], v.shape[2])


def pointers(*tensors):
    return [ctypes.c_void_p(t.data_ptr()) for t in tensors]


@torch.library.custom_op("nano::delta", mutates_args=())
def delta(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """q, k [B, T, Hk, 32], v [B, T, Hv, 32], beta, g [B, T, Hv]: outputs as v, and the states [B, Hv, chunks + 1, 32, 32] before each chunk and at the end"""
    q, k, v, beta, g = (x.contiguous() for x in (q, k, v, beta, g))
    o, states = torch.empty_like(v), delta.fresh_states(v)
    lib().delta_forward(ctypes.byref(shape_of(q, v)), *pointers(q, k, v, beta, g, o, states))
    return o, states


def fresh_states(v):
    return v.new_empty(v.shape[0], v.shape[2], (v.shape[1] + CHUNK - 1) // CHUNK + 1, DIM, DIM)


delta.fresh_states = fresh_states


@delta.register_fake
def _(q, k, v, beta, g):
    return torch.empty_like(v, memory_format=torch.contiguous_format), fresh_states(v)


@torch.library.custom_op("nano::delta_back", mutates_args=())
def delta_back(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, states: torch.Tensor,
               go: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v, beta, g, go = (x.contiguous() for x in (q, k, v, beta, g, go))
    out = torch.zeros_like(q), torch.zeros_like(k), torch.empty_like(v), torch.empty_like(beta), torch.empty_like(g)
    lib().delta_backward(ctypes.byref(shape_of(q, v)), *pointers(q, k, v, beta, g, states, go), ctypes.byref(Grads(*(t.data_ptr() for t in out))))
    return out


@delta_back.register_fake
def _(q, k, v, beta, g, states, go):
    return tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v, beta, g))


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs, output[1])


def _back(ctx, go, _):
    return delta_back(*ctx.saved_tensors, go)


delta.register_autograd(_back, setup_context=_save)

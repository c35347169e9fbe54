# PyTorch and Triton on a pod's GPU, for .ci/real-node: each has its own way to look for the driver's library.
import torch
import triton
import triton.language as tl


@triton.jit
def double(x, count, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(x + at, 2 * tl.load(x + at, mask=at < count), mask=at < count)


numbers = torch.ones(1000, device="cuda")
double[(1,)](numbers, 1000, block=1024)
loaded = {line.split()[-1] for line in open("/proc/self/maps") if "libcuda.so" in line}
print(f"triton: {numbers.sum().item():.0f} by {torch.cuda.get_device_name()} with {' '.join(sorted(loaded))}")

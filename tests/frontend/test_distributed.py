"""Training in several processes: DDP's graphs by buckets and FSDP's by blocks are compiled, and losses are those of eager mode."""

import json

import pytest
import torch
import torch.distributed as dist
from torch import multiprocessing, nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

from mlirc.frontend.report import listening

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="this torch has no gloo")


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(n), nn.Linear(n, 4 * n), nn.Linear(4 * n, n)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(64, 256), nn.Linear(256, 10)
        self.blocks = nn.ModuleList(Block(256) for _ in range(2))

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def sharded(net):
    return FullyShardedDataParallel(net, use_orig_params=True, device_id=torch.device("cpu"))


def wrap(kind, compiled):
    """The network, spread over the processes, and what to call."""
    torch.manual_seed(0)
    net = Net()
    if kind == "blocks":
        for block in net.blocks:
            if compiled:
                block.compile(backend="mlirc")
            fully_shard(block)
        return net, fully_shard(net)
    net = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1) if kind == "ddp" else sharded(net)
    return net, torch.compile(net, backend="mlirc") if compiled else net


def train(kind, rank):
    """The losses of three steps in eager mode, those of compiled ones, and the directions of the graphs that were compiled."""
    losses = []
    with listening() as graphs:
        for compiled in (False, True):
            net, call = wrap(kind, compiled)
            optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
            generator = torch.Generator().manual_seed(rank)
            losses.append([])
            for _ in range(3):
                x, y = torch.randn(16, 64, generator=generator), torch.randint(0, 10, (16,), generator=generator)
                loss = nn.functional.cross_entropy(call(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses[-1].append(loss.item())
    torch._dynamo.reset()
    return *losses, [g.direction for g in graphs if g.kernels]


def process(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    (folder / f"{rank}.json").write_text(json.dumps({kind: train(kind, rank) for kind in GRAPHS}))
    dist.destroy_process_group()


GRAPHS = {"ddp": 2, "fsdp": 1, "blocks": 1}
"""How many graphs there are at least: DDP's buckets cut the network."""


def test_losses(tmp_path):
    multiprocessing.spawn(process, (tmp_path,), nprocs=2)
    both = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    for kind, count in GRAPHS.items():
        for eager, compiled, directions in (results[kind] for results in both):
            assert compiled == pytest.approx(eager, rel=1e-4), kind
            assert directions.count("forward") >= count and directions.count("forward") == directions.count("backward"), kind
    assert both[0]["ddp"][0] != both[1]["ddp"][0]  # each process has data of its own

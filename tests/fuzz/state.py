"""What a module keeps between calls, and who writes to it there: all that a compiler may have computed from it is out of date then."""

from __future__ import annotations

from dataclasses import dataclass

from .choices import Choices

WRITES = (
    "m.{w}.data.copy_({new})", "m.{w}.data.mul_(2)", "with torch.no_grad(): m.{w}.copy_({new})", "m.{w}.data = {new}",
    "m.load_state_dict({{**m.state_dict(), '{w}': {new}}})", "m.{w}.data = m.{w}.data.clone()", "m.{w}.detach().sub_(1)",
    "m.{w}.grad = torch.ones_like(m.{w}); torch.optim.SGD([m.{w}], 0.5).step()", "m.{w}.data = m.{w}.data.flip(0)",
    "m.{w}.grad = {new}; torch.optim.AdamW([m.{w}], 0.5, fused=True).step()", "m.{w}.detach().numpy()[...] = 2",
    "with torch.no_grad(): m.{w}[-1:] = 3", "m.{w}.data[:1] = 2", "m.{w}.data = {new}.mT.contiguous().mT", "torch.nn.init.ones_(m.{w})",
)  # fmt: skip
REPLACED = {True: "m.{w} = torch.nn.Parameter({new})", False: "m.{w} = {new}"}
TIED = ("m.{0}.detach()", "m.{0}.detach().mT", "m.{0}.detach()[1:]")


@dataclass
class Weight:
    """A parameter, or a buffer; `writes`: the statements before the second, third, ... call, empty where there is none."""

    name: str
    expression: str
    parameter: bool
    writes: tuple[str, ...]

    def made(self) -> str:
        """The statement that makes it."""
        if self.parameter:
            return f"m.{self.name} = torch.nn.Parameter({self.expression})"
        return f"m.register_buffer({self.name!r}, {self.expression})"


def weight(c: Choices, name: str, expression: str, parameter: bool, later: int) -> Weight:
    """With writes before `later` further calls; SEED in `expression` is another number in each of them."""
    writes = []
    for call in range(1, later + 1):
        new = f"({expression.replace('SEED', f'{call}{name[1:]}')})"
        statement = c.pick(("", *WRITES, REPLACED[parameter])).format(w=name, new=new)
        writes.append(statement)
    return Weight(name, expression.replace("SEED", name[1:]), parameter, tuple(writes))

"""Step rules that the ablations swap (Tables 2–4), and the three kinds of wave speed (appendix A, Eqs. 8–9).

Every transition is called as `transition(z, direction) -> z_next` on any tensor whose last axis is C.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.errors import InputError
from finola.propagation import EPS, Coefficients, Direction, Step, normalise

DIRECTIONS: tuple[Direction, ...] = ("right", "down", "left", "up")  # the order of Coefficients: A, B, A₋, B₋


def random_matrix(channels: int) -> nn.Parameter:
    """C×C, uniform in ±1/√C: one step moves a unit-variance ẑ by about 0.6 σ."""
    bound = 1 / math.sqrt(channels)
    return nn.Parameter(torch.empty(channels, channels).uniform_(-bound, bound))


class Transition(nn.Module):
    """A step rule for C channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def prepared(self) -> Step:
        """What `propagate` calls for a whole map: itself, or matrices built once from the parameters."""
        return self

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        """The parameters that steps in `direction` alone use."""
        return []


def prepared(transition: nn.Module) -> Step:
    """What `propagate` calls for a whole map. A module that is no `Transition` is called as it is, step by step."""
    step: Step = transition.prepared() if isinstance(transition, Transition) else transition
    return step


def check_named(transition: nn.Module | None, kind: str, speeds: str, channels: int) -> None:
    """Raise InputError where `transition` is not of the class that a model's name builds: it cannot be saved."""
    if transition is None:  # Conv-AE
        return
    with torch.device("meta"):
        named = None if kind == "conv-ae" else type(build_transition(kind, speeds, channels))
    if type(transition) is not named:
        raise InputError(
            f"model.transition is a {type(transition).__name__}, which no model name describes, so save_pretrained "
            "cannot write it: save model.state_dict() with safetensors.torch.save_file, and assign the transition "
            "again before loading it."
        )


class LinearAfterNorm(Transition, ABC):
    """z + A ẑ, whatever the four matrices are made of: what one-way waves can be read from (§3)."""

    @abstractmethod
    def coefficients(self) -> Coefficients:
        """A, B, A₋, B₋ as they stand."""

    def prepared(self) -> Step:
        return self.coefficients()

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return self.coefficients()(z, direction)


class NormLinear(LinearAfterNorm):
    """z + A ẑ with four free matrices: the paper's FINOLA, complex speeds (Eq. 1).

    >>> NormLinear(8)(torch.randn(2, 8), "left").shape
    torch.Size([2, 8])
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.A = random_matrix(channels)
        self.B = random_matrix(channels)
        self.A_minus = random_matrix(channels)
        self.B_minus = random_matrix(channels)

    def coefficients(self) -> Coefficients:
        return Coefficients(self.A, self.B, self.A_minus, self.B_minus)

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [(self.A, self.B, self.A_minus, self.B_minus)[DIRECTIONS.index(direction)]]


class RealSpeeds(LinearAfterNorm):
    """A = P·diag(α), B = P·diag(β): real speeds λ = α/β (Eq. 8). Left and up have diagonals of their own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.P = random_matrix(channels)
        self.alpha = nn.Parameter(torch.empty(channels).uniform_(0.5, 1.5))
        self.beta = nn.Parameter(torch.empty(channels).uniform_(0.5, 1.5))
        self.alpha_minus = nn.Parameter(torch.empty(channels).uniform_(0.5, 1.5))
        self.beta_minus = nn.Parameter(torch.empty(channels).uniform_(0.5, 1.5))

    def coefficients(self) -> Coefficients:
        return Coefficients(*(self.P * diagonal for d in DIRECTIONS for diagonal in self.parameters_of(d)))

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [(self.alpha, self.beta, self.alpha_minus, self.beta_minus)[DIRECTIONS.index(direction)]]


class UnitSpeeds(LinearAfterNorm):
    """A = B = A₋ = B₋ = P: every speed is 1 (Eq. 9). The map is symmetric, so a position embedding follows it."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.P = random_matrix(channels)

    def coefficients(self) -> Coefficients:
        return Coefficients(self.P, self.P, self.P, self.P)


class Linear(Transition):
    """z + A z, no norm: Table 2's linear baseline, which blows up on large maps by nature."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weights = nn.ParameterDict({direction: random_matrix(channels) for direction in DIRECTIONS})

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return z + F.linear(z, self.weights[direction])

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [self.weights[direction]]


class Repetition(Transition):
    """z everywhere the same: Table 2's floor. With a position embedding before the decoder it is Repetition‡."""

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return z


class NormMLP(Transition):
    """z + W₂ GELU(W₁ ẑ): Table 3's norm+nonlinear, two layers of width C in every direction."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.layers = nn.ModuleDict(
            {
                d: nn.Sequential(nn.Linear(channels, channels), nn.GELU(), nn.Linear(channels, channels))
                for d in DIRECTIONS
            }
        )

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        step: Tensor = self.layers[direction](normalise(z))
        return z + step

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return list(self.layers[direction].parameters())


class BatchNormLinear(Transition):
    """z + A BN(z): Table 4's batch norm for layer norm.

    In training every step normalises by the statistics of its own line over the batch; in evaluation by their
    running mean, which is what the paper's 16.3 dB on validation shows.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.norm = nn.BatchNorm1d(channels, eps=EPS, affine=False)
        self.linear = NormLinear(channels)

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        z_hat = self.norm(z.reshape(-1, self.channels)).view_as(z)
        return z + F.linear(z_hat, self.linear.coefficients().matrix(direction))

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return self.linear.parameters_of(direction)


def build_transition(kind: str, speeds: str, channels: int) -> Transition:
    """The transition that a `ModelConfig` names.

    >>> type(build_transition("norm-linear", "real", 8)).__name__
    'RealSpeeds'
    """
    if kind == "norm-linear":
        by_speed: dict[str, type[Transition]] = {"complex": NormLinear, "real": RealSpeeds, "unit": UnitSpeeds}
        return by_speed[speeds](channels)
    kinds: dict[str, type[Transition]] = {
        "linear": Linear,
        "repetition": Repetition,
        "norm-mlp": NormMLP,
        "batch-norm": BatchNormLinear,
    }
    return kinds[kind](channels)

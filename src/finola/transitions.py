"""Transition rules of the ablations and the three types of wave speed (appendix A.8, Eqs. 8–9).

Every transition is called as `transition(z, direction) -> z_next` on any tensor whose last axis is C.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finola.config import RECURRENT
from finola.errors import InputError
from finola.propagation import EPS, Coefficients, Direction, Order, Position, Step, normalise, propagate

DIRECTIONS: tuple[Direction, ...] = ("right", "down", "left", "up")  # the order of Coefficients: A, B, A₋, B₋


def random_matrix(channels: int) -> nn.Parameter:
    """C×C matrix, uniform in ±1/√C, so that the norm of one step is about 0.6 of that of a unit-variance ẑ."""
    bound = 1 / math.sqrt(channels)
    return nn.Parameter(torch.empty(channels, channels).uniform_(-bound, bound))


class Transition(nn.Module):
    """Base class of the transition rules for C channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def prepared(self) -> Step:
        """Return the step that `propagate` uses for a whole map: the module, or its matrices, computed once."""
        return self

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        """Parameters that only steps in `direction` use."""
        return []

    @torch.no_grad()
    def scale_steps(self, factor: float) -> None:
        """Multiply what a step adds to z by `factor`, by scaling the parameters that it is linear in."""
        for parameter in self.parameters():
            parameter.mul_(factor)


def prepared(transition: nn.Module) -> Step:
    """Return the step that `propagate` uses for a whole map; a module that is not a `Transition` is returned as is."""
    step: Step = transition.prepared() if isinstance(transition, Transition) else transition
    return step


def check_named(transition: nn.Module | None, kind: str, speeds: str, channels: int) -> None:
    """Raise InputError if `transition` is not of the class that the model's name describes and so cannot be saved."""
    if transition is None:  # a control without a recurrence
        return
    with torch.device("meta"):
        named = type(build_transition(kind, speeds, channels)) if kind in RECURRENT else None
    if type(transition) is not named:
        raise InputError(
            f"model.transition is a {type(transition).__name__}, which a model name cannot describe, so "
            "save_pretrained does not support it. Save model.state_dict() with safetensors.torch.save_file, and assign "
            "the transition again before loading."
        )


class LinearAfterNorm(Transition, ABC):
    """Base class of norm+linear transitions, z + A ẑ, to which the wave analysis applies (§3)."""

    @abstractmethod
    def coefficients(self) -> Coefficients:
        """Current matrices A, B, A₋, B₋."""

    def prepared(self) -> Step:
        return self.coefficients()

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return self.coefficients()(z, direction)


class NormLinear(LinearAfterNorm):
    """Norm+linear, z + A ẑ, with four unconstrained matrices and complex speeds: FINOLA (Eq. 1).

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


class Propagation(nn.Module):
    """The recurrence as a layer with trainable matrices: q (N, M, C) → z (N, C, H, W) (Eqs. 1 and 3).

    `size`, `start` and `order` are those of `finola.propagate`.

    >>> layer = Propagation(16, size=(5, 8), start="top-left")
    >>> layer(torch.randn(2, 1, 16)).shape, sorted(layer.state_dict())
    (torch.Size([2, 16, 5, 8]), ['A', 'A_minus', 'B', 'B_minus'])
    """

    def __init__(
        self,
        channels: int,
        size: int | Position,
        start: str | Position | Sequence[Position] = "center",
        *,
        order: Order = "mean",
        checkpointing: bool = False,
    ) -> None:
        super().__init__()
        self.channels, self.size, self.start = channels, size, start
        self.order, self.checkpointing = order, checkpointing
        for name in Coefficients._fields:
            self.register_parameter(name, random_matrix(channels))

    def coefficients(self) -> Coefficients:
        """Current matrices A, B, A₋, B₋, as `finola.waves` takes them."""
        return Coefficients(*(self.get_parameter(name) for name in Coefficients._fields))

    def forward(self, q: Tensor) -> Tensor:
        return propagate(
            q, self.coefficients(), self.size, self.start, order=self.order, checkpointing=self.checkpointing
        )

    def extra_repr(self) -> str:
        return f"{self.channels}, size={self.size}, start={self.start!r}"


class FixedMatrices(LinearAfterNorm):
    """Norm+linear with matrices that are neither trained nor stored: exact plane waves, set by `initialise_waves`."""

    A: Tensor
    B: Tensor
    A_minus: Tensor
    B_minus: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        for name in Coefficients._fields:
            self.register_buffer(name, torch.zeros(channels, channels), persistent=False)

    def coefficients(self) -> Coefficients:
        return Coefficients(self.A, self.B, self.A_minus, self.B_minus)


class RealSpeeds(LinearAfterNorm):
    """Norm+linear with A = P·diag(α), B = P·diag(β): real speeds λ = α/β (Eq. 8). Left and up have their own."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.P = random_matrix(channels)
        # With both signs: diagonals near 1 would make the four matrices, and so all directions, nearly equal.
        self.alpha = nn.Parameter(torch.randn(channels))
        self.beta = nn.Parameter(torch.randn(channels))
        self.alpha_minus = nn.Parameter(torch.randn(channels))
        self.beta_minus = nn.Parameter(torch.randn(channels))

    def coefficients(self) -> Coefficients:
        return Coefficients(*(self.P * diagonal for d in DIRECTIONS for diagonal in self.parameters_of(d)))

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [(self.alpha, self.beta, self.alpha_minus, self.beta_minus)[DIRECTIONS.index(direction)]]

    @torch.no_grad()
    def scale_steps(self, factor: float) -> None:
        self.P.mul_(factor)


class UnitSpeeds(LinearAfterNorm):
    """Norm+linear with A = B = A₋ = B₋ = P: all speeds are 1 (Eq. 9).

    The map is symmetric, so models with unit speeds add a position embedding before the decoder.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.P = random_matrix(channels)

    def coefficients(self) -> Coefficients:
        return Coefficients(self.P, self.P, self.P, self.P)


class CommutingSpeeds(LinearAfterNorm):
    """Norm+linear with matrices that commute: A, B, A₋, B₋ = V·D·V⁺ share C − 1 eigenvectors orthogonal to 1.

    D consists of blocks (a, −b; b, a) with the eigenvalues a ± bi, so a, b and V are free parameters of real matrices.
    The two orders of propagation then differ only by the change of σ. z keeps the mean over channels of q.
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        basis = torch.randn(channels, channels - 1)
        self.V = nn.Parameter(torch.linalg.qr(basis - basis.mean(0))[0])
        scale = 1 / math.sqrt(6)  # ‖A‖ is that of a `random_matrix`
        self.eigenvalues = nn.ParameterDict({d: scale * torch.randn(channels - 1) for d in DIRECTIONS})

    def coefficients(self) -> Coefficients:
        V = self.V - self.V.mean(0)
        square = torch.cat([V, V.new_ones(self.channels, 1)], dim=1)
        precise = square.to(torch.promote_types(V.dtype, torch.float32))  # linalg.inv takes no lower precision
        inverse: Tensor = torch.linalg.inv(precise)[:-1].to(V)  # V⁺: 1ᵀV = 0
        pairs = (self.channels - 1) // 2
        P, Q, rest = V[:, :pairs], V[:, pairs : 2 * pairs], V[:, 2 * pairs :]

        def matrix(direction: Direction) -> Tensor:
            a, b, real = self.eigenvalues[direction].tensor_split([pairs, 2 * pairs])
            return torch.cat([P * a + Q * b, Q * a - P * b, rest * real], dim=1) @ inverse

        return Coefficients(*(matrix(direction) for direction in DIRECTIONS))

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [self.eigenvalues[direction]]

    @torch.no_grad()
    def scale_steps(self, factor: float) -> None:
        for eigenvalues in self.eigenvalues.values():
            eigenvalues.mul_(factor)


class Linear(Transition):
    """Linear baseline of Table 2 (table:comp-auto), z + A z without normalisation; it diverges on large maps."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.weights = nn.ParameterDict({direction: random_matrix(channels) for direction in DIRECTIONS})

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return z + F.linear(z, self.weights[direction])

    def parameters_of(self, direction: Direction) -> list[nn.Parameter]:
        return [self.weights[direction]]


class Repetition(Transition):
    """Repetition baseline of Table 2: z is constant. With a position embedding before the decoder: Repetition‡."""

    def forward(self, z: Tensor, direction: Direction) -> Tensor:
        return z


class NormMLP(Transition):
    """Norm+nonlinear of Table 3 (table:comp-nonlinear), z + W₂ GELU(W₁ ẑ): a two-layer MLP of width C per direction."""

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

    @torch.no_grad()
    def scale_steps(self, factor: float) -> None:
        for direction in DIRECTIONS:
            for parameter in self.parameters_of(direction)[-2:]:  # W₂ and its bias
                parameter.mul_(factor)


class BatchNormLinear(Transition):
    """Batch norm instead of layer norm as in Table 4 (table:comp-norm), z + A BN(z).

    In training each step normalises by the statistics of its own line over the batch; in evaluation by their running
    mean, which explains the 16.3 dB that the paper reports on validation.
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
    """Build a transition from the fields of a `ModelConfig`.

    >>> type(build_transition("norm-linear", "real", 8)).__name__
    'RealSpeeds'
    """
    if kind == "norm-linear":
        by_speed: dict[str, type[Transition]] = {
            "complex": NormLinear,
            "real": RealSpeeds,
            "unit": UnitSpeeds,
            "commuting": CommutingSpeeds,
            "fixed": FixedMatrices,
        }
        return by_speed[speeds](channels)
    kinds: dict[str, type[Transition]] = {
        "linear": Linear,
        "repetition": Repetition,
        "norm-mlp": NormMLP,
        "batch-norm": BatchNormLinear,
    }
    return kinds[kind](channels)

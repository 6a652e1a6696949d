"""The recurrence as an operator: derivatives, function transforms, meta and fake tensors, torch.compile."""

from __future__ import annotations

import pytest
import torch
from dispatch import Dispatched
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

import finola
from finola.heads import Classifier
from finola.heads.detector import Detector
from finola.masked import MaskedFinola, masked_loss
from finola.propagation import Coefficients, Position, propagate, start_positions
from finola.transitions import NormLinear, NormMLP

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap over attention

C, SIZE = 4, (3, 4)


def inputs(paths: int = 2, scale: float = 0.5) -> list[Tensor]:
    torch.manual_seed(0)
    q = torch.randn(2, paths, C, dtype=torch.float64)
    return [q, *(scale * torch.randn(4, C, C, dtype=torch.float64))]


def grown(q: Tensor, *matrices: Tensor, start: str = "center") -> Tensor:
    return propagate(q, Coefficients(*matrices), SIZE, start)


def loss(q: Tensor, *matrices: Tensor) -> Tensor:
    return grown(q, *matrices).pow(3).sum()


def stepwise_loss(q: Tensor, *matrices: Tensor) -> Tensor:
    """The same by a transition of one's own, which PyTorch differentiates step by step."""
    coefficients = Coefficients(*matrices)
    return propagate(q, lambda z, direction: coefficients(z, direction), SIZE).pow(3).sum()


@pytest.mark.parametrize("start", ["center", "scatter", "top-left"])
def test_first_and_second_derivatives_agree_with_differences(start: str) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs()]
    assert torch.autograd.gradcheck(lambda *t: grown(*t, start=start), tensors)
    assert torch.autograd.gradgradcheck(lambda *t: grown(*t, start=start), tensors)


def test_forward_mode_agrees_with_differences() -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs()]
    assert torch.autograd.gradcheck(grown, tensors, check_forward_ad=True, check_backward_ad=False)


def test_gradients_under_autocast_are_those_without() -> None:
    tensors = [tensor.float().requires_grad_() for tensor in inputs()]
    expected = torch.autograd.grad(loss(*tensors), tensors)
    with torch.autocast("cpu", torch.bfloat16):
        inside = torch.autograd.grad(loss(*tensors), tensors)
        again = torch.autograd.grad(loss(*tensors), tensors, create_graph=True)
    torch.testing.assert_close(inside, expected)
    torch.testing.assert_close([gradient.detach() for gradient in again], list(expected), atol=1e-4, rtol=1e-4)


def test_functional_derivatives_are_those_of_the_steps() -> None:
    q, *matrices = inputs()
    v = torch.randn_like(q)
    of = torch.autograd.functional
    for derive in (
        of.hessian,
        lambda f, q: of.hvp(f, q, v)[1],
        lambda f, q: of.jvp(f, q, v)[1],
        lambda f, q: of.jacobian(f, q, create_graph=True),
    ):
        ours = derive(lambda q: loss(q, *matrices), q)
        assert ours.any()
        torch.testing.assert_close(ours, derive(lambda q: stepwise_loss(q, *matrices), q))
    q.requires_grad_()
    assert of.jacobian(lambda q: loss(q, *matrices), q, create_graph=True).requires_grad


@pytest.mark.parametrize("derive", [grad, jacrev, jacfwd, hessian])
@pytest.mark.parametrize("argument", [0, 1])
def test_function_transforms(derive, argument: int) -> None:
    tensors = inputs()
    expected = {
        "hessian": torch.autograd.functional.hessian,
    }.get(derive.__name__, torch.autograd.functional.jacobian)(
        lambda t: stepwise_loss(*tensors[:argument], t, *tensors[argument + 1 :]), tensors[argument]
    )
    torch.testing.assert_close(derive(loss, argnums=argument)(*tensors), expected)


def test_jvp_and_vmap_over_q_and_over_matrices() -> None:
    q, *matrices = inputs()
    _, tangent = jvp(lambda q: loss(q, *matrices), (q,), (torch.ones_like(q),))
    (gradient,) = torch.autograd.grad(loss(q.requires_grad_(), *matrices), q)
    torch.testing.assert_close(tangent, gradient.sum())
    q = q.detach()
    many = torch.stack([q, 2 * q])
    expected = torch.stack([grown(t, *matrices) for t in many])
    torch.testing.assert_close(vmap(lambda q: grown(q, *matrices))(many), expected)
    As = torch.stack([matrices[0], -matrices[0]])
    expected = torch.stack([grown(q, A, *matrices[1:]) for A in As])
    torch.testing.assert_close(vmap(lambda A: grown(q, A, *matrices[1:]))(As), expected)


@pytest.mark.parametrize("kind", [NormLinear, NormMLP])
@pytest.mark.parametrize("order", ["mean", "horizontal"])
def test_vmap_over_a_transition_of_ones_own(kind, order: str) -> None:
    transition = kind(C).double().eval()
    many = torch.randn(3, 2, 1, C, dtype=torch.float64)
    with torch.no_grad():
        expected = torch.stack([propagate(q, transition, SIZE, order=order) for q in many])
        found = vmap(lambda q: propagate(q, transition, SIZE, order=order))(many)
    torch.testing.assert_close(found, expected)


MODELS = [
    "test_resnet/8x2@2:64+scatter+patch",
    "waves/16x1@4:16",
    "waves+conv/16x1@4:16",
    "test_resnet/8x1@2:64+pos+unit+patch",
    "waves+nets/64x1@4:16",
    "mf-w720/8x1@2:32+tran1",
]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_per_sample_of_a_model(name: str) -> None:
    torch.manual_seed(0)
    model = finola.create(name).eval().double()
    images = torch.rand(2, 3, *model.config.image_size, dtype=torch.float64)
    parameters = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}

    def error(parameters: dict[str, Tensor], image: Tensor) -> Tensor:
        return (functional_call(model, parameters, (image[None],)) - image).square().mean()

    found = vmap(grad(error), (None, 0))(parameters, images)
    for number, image in enumerate(images):
        model.zero_grad()
        (model(image[None]) - image).square().mean().backward()
        for key, parameter in model.named_parameters():
            if key in found:
                expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                torch.testing.assert_close(found[key][number], expected, atol=1e-9, rtol=1e-6)


def test_masked_models_and_classifiers_have_gradients_per_sample() -> None:
    torch.manual_seed(0)
    images, places = torch.rand(2, 3, 128, 128), torch.tensor([[1, 2]])
    for variant in ("e", "b"):
        model = MaskedFinola("mf-w720/8x1@8:128+patch", variant).eval()
        parameters = dict(model.named_parameters())

        def error(parameters: dict[str, Tensor], image: Tensor, model: MaskedFinola = model) -> Tensor:
            return masked_loss(functional_call(model, parameters, (image[None], places)), image[None])

        found = vmap(grad(error), (None, 0))(parameters, images)
        masked_loss(model(images[:1], places), images[:1]).backward()
        torch.testing.assert_close(found["transition.A"][0], model.transition.A.grad, atol=1e-5, rtol=1e-3)
    classifier = Classifier("mf-w720", "tran-1", 2, image_size=64, frozen=False).eval()
    derivative = jacrev(lambda image: classifier(image[None])[0])(images[0, :, :64, :64])
    tangent = jvp(lambda image: classifier(image[None])[0], (images[0, :, :64, :64],), (torch.ones(3, 64, 64),))[1]
    torch.testing.assert_close(derivative.sum((1, 2, 3)), tangent, atol=1e-3, rtol=1e-3)


def test_gradients_of_an_elastic_model() -> None:
    torch.manual_seed(0)
    model = finola.load("tile32").double()
    image = torch.rand(1, 3, 64, 96, dtype=torch.float64, requires_grad=True)
    direction = torch.randn_like(image)

    def drawn(image: Tensor) -> Tensor:
        return model(image).square().sum()

    (gradient,) = torch.autograd.grad(drawn(image), image)
    torch.testing.assert_close(grad(drawn)(image.detach()), gradient)
    with torch.no_grad():
        step = 1e-6 * direction
        slope = (drawn(image + step) - drawn(image - step)) / 2e-6
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["waves/16x1@4:16", "test_resnet/8x2@2:64+scatter+patch", "mf-w720/8x1@2:32+tran1"])
def test_the_curvature_of_a_model_with_respect_to_its_image(name: str) -> None:
    torch.manual_seed(0)
    model = finola.create(name).eval().double()
    image = torch.rand(1, 3, *model.config.image_size, dtype=torch.float64)
    direction = torch.randn_like(image)

    def cubes(image: Tensor) -> Tensor:
        return model(image).pow(3).sum()

    with sdpa_kernel(SDPBackend.MATH):
        expected = torch.autograd.functional.hvp(cubes, image, direction)[1]
    assert expected.any()
    torch.testing.assert_close(jvp(grad(cubes), (image,), (direction,))[1], expected)


@pytest.mark.parametrize("start", ["center", "scatter", "bottom-left"])
def test_on_the_meta_device_nothing_depends_on_values(start: str) -> None:
    """What runs without values decides nothing by values, and can be captured in a CUDA graph."""
    q, *matrices = (tensor.to("meta").requires_grad_() for tensor in inputs(4))
    z = grown(q, *matrices, start=start)
    assert z.shape == (2, C, *SIZE) and z.is_contiguous(memory_format=torch.channels_last)
    z.sum().backward()
    assert q.grad is not None and q.grad.shape == q.shape
    with torch.no_grad():
        assert grown(q, *matrices, start=start).shape == z.shape


@pytest.mark.parametrize("name", MODELS)
def test_fake_tensors_of_a_whole_model(name: str) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = finola.create(name)
        images = torch.rand(2, 3, *model.config.image_size)
        out = model(images)
        assert out.shape == images.shape
        out.sum().backward()


@pytest.mark.parametrize("start", ["center", "scatter"])
def test_torch_compile_of_the_full_graph(start: str) -> None:
    tensors = [tensor.requires_grad_() for tensor in inputs(4)]

    def function(*tensors: Tensor) -> Tensor:
        return grown(tensors[0].tanh(), *tensors[1:], start=start).square().mean()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for ours, expected in zip(
        torch.autograd.grad(compiled(*tensors), tensors), torch.autograd.grad(function(*tensors), tensors), strict=True
    ):
        torch.testing.assert_close(ours, expected)
    with torch.no_grad():
        torch.testing.assert_close(compiled(*tensors), function(*tensors))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("training", [False, True])
def test_torch_compile_of_the_full_graph_of_a_model(name: str, training: bool) -> None:
    torch.manual_seed(0)
    model = finola.create(name).train(training)
    images = torch.rand(2, 3, *model.config.image_size)
    expected = model(images)
    torch.compiler.reset()
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(images)
    torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-4)
    out.sum().backward()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_on_the_meta_device(name: str) -> None:
    model = finola.create(name).to("meta")
    images = torch.rand(2, 3, *model.config.image_size, device="meta")
    out = model(images)
    out.sum().backward()
    assert out.is_meta and out.shape == images.shape


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_training_step_of_a_model_never_waits_for_the_device(name: str, checkpointing: bool) -> None:
    model = finola.create(name).train()
    model.set_grad_checkpointing(checkpointing)
    images = torch.rand(2, 3, *model.config.image_size)
    model(images).square().mean().backward()  # what is computed once
    with Dispatched() as dispatched:
        model(images).square().mean().backward()
    assert not dispatched.waits


def test_a_training_step_of_heads_never_waits_for_the_device() -> None:
    """Except for the costs of the matching, which are copied to the CPU together."""
    images, sizes = torch.rand(2, 3, 64, 64), torch.tensor([[64, 64], [48, 64]])
    target = {"labels": torch.tensor([0, 0]), "boxes": torch.tensor([[8.0, 8, 40, 40], [4, 4, 20, 30]])}
    detector = Detector("mf-w720", classes=["a"], frozen=False).train()
    classifier = Classifier("mf-w720", "tran-1", 2, image_size=64, frozen=False).train()
    with Dispatched() as dispatched:
        sum(detector.losses(images, sizes, [target] * 2).values()).backward()
        torch.nn.functional.cross_entropy(classifier(images), torch.tensor([0, 1])).backward()
    assert not dispatched.waits


def dispatched(start: str | Position, paths: int, side: int) -> int:
    """Operations of one forward and backward pass, none of which waits for the device."""
    q = torch.randn(1, paths, 8, requires_grad=True)
    matrices = Coefficients(*(0.1 * torch.randn(4, 8, 8)).requires_grad_())
    with Dispatched() as recorder:
        propagate(q, matrices, side, start).sum().backward()
    assert not recorder.waits
    return len(recorder.names)


@pytest.mark.parametrize("side", [16, 64])
@pytest.mark.parametrize("paths", [4, 8, 16])
def test_scattered_starts_advance_in_lockstep(side: int, paths: int) -> None:
    """M scattered paths take at most 1.5 times the operations of the one among them with the most steps."""
    longest = max(dispatched(start, 1, side) for start in start_positions("scatter", (side, side), paths))
    assert dispatched("scatter", paths, side) <= 1.5 * longest

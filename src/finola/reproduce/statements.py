"""What every table and figure of the paper states, in one sentence, and how it is examined here."""

from __future__ import annotations

from typing import NamedTuple

RUNS = "runs"
"""Examined by the claims of `finola.reproduce.claims`."""
DEFINITION = "definition"
"""An architecture, a setting or an illustration: nothing to measure."""
IMAGENET = "needs ImageNet-1K"
COCO = "needs ImageNet-1K and COCO 2017"


class Statement(NamedTuple):
    """A sentence, and `RUNS`, `DEFINITION`, the data that is needed, or the page of docs/ with a measurement."""

    sentence: str
    examined: str


STATEMENTS = {
    "table:multi-resolution": Statement(
        "PSNR is similar for all map sizes up to 64×64 and drops slightly on larger maps, whose decoders are smaller.",
        RUNS,
    ),
    "table:comp-auto": Statement(
        "Norm+linear is better than repetition with or without position embedding; linear without a norm does not "
        "converge on a map of 64×64.",
        RUNS,
    ),
    "table:comp-nonlinear": Statement("A two-layer MLP instead of the linear layer gains almost nothing.", RUNS),
    "table:comp-norm": Statement(
        "Batch norm is nearly as good as layer norm in training and far worse in validation.", RUNS
    ),
    "table:comp-dct": Statement("FINOLA is better than the DCT at a similar number of latents.", "compare.md"),
    "table:comp-dwt": Statement(
        "FINOLA is better than the DWT and the DTCWT with fewer latents, except the DTCWT with 6 times as many.",
        "compare.md",
    ),
    "table:comp-ae": Statement(
        "FINOLA is better than a Conv-AE with the same number of latents and more parameters.", RUNS
    ),
    "table:comp-jpeg": Statement(
        "FINOLA, quantised per channel without entropy coding, is better than JPEG at the same rate or a higher one.",
        "compare.md",
    ),
    "table:finola-vs-self-sup": Statement(
        "Fine-tuned masked FINOLA is as accurate as other self-supervised methods of the same size.",
        IMAGENET,
    ),
    "table:hidden-vs-dct": Statement("Properties of the DCT, wavelets and FINOLA.", DEFINITION),
    "table:appendix:mf-enc-achs": Statement("Architecture of the Mobile-Former encoders.", DEFINITION),
    "table:appendix:upsampler-achs": Statement("Architecture of the upsampling decoder.", DEFINITION),
    "table:appendix:FINOLA": Statement("Settings of reconstruction training.", DEFINITION),
    "table:comp-arch-conv-ae": Statement("Architecture of the Conv-AE.", DEFINITION),
    "table:comp-diffusion": Statement(
        "FINOLA reconstructs better than the first stage of generative models at a similar number of latents, except "
        "at the largest one.",
        IMAGENET,
    ),
    "table:ablation": Statement("PSNR increases with the number of channels and with the size of the encoder.", RUNS),
    "table:special-case-all": Statement(
        "Complex speeds are better than real ones, these better than all-one speeds, and these better than repetition.",
        RUNS,
    ),
    "table:mixture-hidden-waves": Statement("Scattered start positions are better than a common one.", RUNS),
    "table:appendix:od-mf-dec-achs": Statement("Architecture of the detection heads.", DEFINITION),
    "table:appendix:masked-FINOLA": Statement("Settings of masked pre-training.", DEFINITION),
    "table:appendix:lin-tran-setting": Statement("Settings of probing.", DEFINITION),
    "table:appendix:finetune-setting": Statement("Settings of fine-tuning.", DEFINITION),
    "table:appendix:ablation-tran-blocks": Statement(
        "More transformer blocks in the decoder of masked FINOLA improve probing and barely change fine-tuning.",
        IMAGENET,
    ),
    "table:finola-vs-mask-based-methods": Statement(
        "Linear probing of masked FINOLA is comparable to masked methods with larger encoders.",
        IMAGENET,
    ),
    "table:finola-mocov2": Statement(
        "Masked FINOLA is better than MoCo-v2 in tran-1 probing, fine-tuning, detection and segmentation, and on par "
        "in linear probing.",
        "recognition.md",
    ),
    "table:appendix:finola-vs-sup-COCO": Statement(
        "A frozen encoder of masked FINOLA detects better than one trained with labels.",
        COCO,
    ),
    "table:appendix:finola-vs-sup-COCO-ft": Statement(
        "After fine-tuning on COCO, masked FINOLA with fine-tuning on ImageNet-1K detects better than supervision.",
        COCO,
    ),
    "table:coco-det-detr-cmp": Statement(
        "The detector is comparable to DETR variants with fewer multiply–adds.",
        COCO,
    ),
    "table:finola-maskfinola": Statement(
        "Masked FINOLA reconstructs worse than FINOLA and recognises better; block-wise better than element-wise.",
        "recognition.md",
    ),
    "table:appendix:finola-maskedfinola-probing": Statement(
        "No size of q brings the probing accuracy of FINOLA near that of masked FINOLA.",
        IMAGENET,
    ),
    "fig:wave-intro": Statement("All images share one set of one-way wave equations.", DEFINITION),
    "fig:finola": Statement("The pipeline from image to q, z and image.", DEFINITION),
    "fig:finola-multipath": Statement("M paths share the recurrence and are summed.", DEFINITION),
    "fig:finola-parallel": Statement(
        "Both orders of propagation are computed in parallel and averaged; this is faster than position by position.",
        "speed.md",
    ),
    "fig:val-relax": Statement(
        "PSNR increases with the number of paths, and depends on paths and channels through their product only.", RUNS
    ),
    "fig:appendix:recon-num-channels": Statement("Image quality increases with the number of channels.", RUNS),
    "fig:appendix:recon-enc": Statement("Image quality increases slightly with the size of the encoder.", RUNS),
    "fig:appendix:recon-pos": Statement("The position of q matters little; the centre is slightly better.", RUNS),
    "fig:appendix:noise": Statement("Vectors drawn from the normal distribution of q look like noise.", RUNS),
    "fig:appendix:recon-mean": Statement("The mean of q is reconstructed as a grey image.", RUNS),
    "fig:appendix:recon-mixup": Statement("A mixture of two q is reconstructed as a mixture of images.", RUNS),
    "fig:appendix:recon-pca": Statement("The first 192 principal components determine colour and layout.", RUNS),
    "fig:wave-finola-vis": Statement("Several paths reconstruct better than one.", RUNS),
    "fig:recon-mc": Statement("Image quality increases with paths and channels.", RUNS),
    "fig:recon-special": Statement("Real and all-one speeds still reconstruct recognisable images.", RUNS),
    "fig:masked-finola": Statement("The pipelines of masked FINOLA.", DEFINITION),
    "fig:appendix:train-len": Statement(
        "Longer pre-training improves probing and barely changes fine-tuning.",
        IMAGENET,
    ),
    "fig:cls-od-sup": Statement(
        "Frozen encoders of masked FINOLA detect better than those trained with labels, and classify worse before "
        "fine-tuning.",
        COCO,
    ),
    "fig:appendix:recon-ftlin": Statement(
        "Reconstruction from the frozen encoder of masked FINOLA.",
        "recognition.md",
    ),
    "fig:appendix:element-vs-block": Statement(
        "Block-wise masking is better than element-wise masking.",
        "recognition.md",
    ),
    "fig:masked-finola-gaussian": Statement(
        "Critical features have a larger Gaussian curvature in masked FINOLA than in FINOLA.",
        "recognition.md",
    ),
}
"""Statements of all tables and figures by LaTeX label."""

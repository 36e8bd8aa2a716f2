"""The card models that Tenfold knows: one table of what their makers say about them.

Owns names and nominal numbers. What a card at hand really reports (an NVML total of 81,251 MiB instead of 81,920, say) is read on
the node by ``gpu_node_facts`` and given to ``tiers`` beside the model. To add a model, add a row: nothing else knows their names.
"""

from __future__ import annotations

from dataclasses import dataclass

from .errors import CardError

__all__ = ["MODELS", "CardModel", "by_product_name", "named"]


@dataclass(frozen=True)
class CardModel:
    """One model of card.

    Units:  memory_mib is the nominal NVML total in MiB (drivers report the same or some hundred MiB less); multiprocessors counts
            SMs; compute_capability is (major, minor); driver_minimum is a version such as ``450.80.02``.
    """

    name: str
    product_names: tuple[str, ...]
    memory_mib: int
    multiprocessors: int
    compute_capability: tuple[int, int]
    mig_capable: bool
    driver_minimum: str


# Sources. Product names: as NVML and nvidia-smi print them. Memory: NVML totals in public nvidia-smi listings, the larger where two
# are known. Multiprocessors and compute capability: NVIDIA's data sheets and CUDA programming guide. Driver floors: GA100 and GH100
# from the table in NVIDIA's MIG user guide, "deployment considerations" (A100: 450.80.02, H100: 525.85.12; older ones run the cards
# in part, our choice is to ask for these); Volta and Turing were served before the product's own gate of 440, so the gate is theirs;
# AD102 is our choice, the first production branch after its release. The A800 is GA100 silicon sold from late 2022: R450 drives it,
# the oldest driver seen on one in public is 470.141.10, and before that it may go by another name.
_GA100_DRIVER = "450.80.02"
_GATE_DRIVER = "440"
_GH100_DRIVER = "525.85.12"
_AD102_DRIVER = "525.60.13"
MODELS = (
    CardModel(
        "a800-80gb", ("NVIDIA A800-SXM4-80GB", "NVIDIA A800 80GB PCIe", "NVIDIA A800 80GB PCIe LC"), 81920, 108, (8, 0), True, _GA100_DRIVER
    ),
    CardModel(
        "a800-40gb", ("NVIDIA A800-SXM4-40GB", "NVIDIA A800 40GB PCIe", "NVIDIA A800 40GB Active"), 40960, 108, (8, 0), True, _GA100_DRIVER
    ),
    CardModel("a100-80gb", ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "A100-SXM4-80GB"), 81920, 108, (8, 0), True, _GA100_DRIVER),
    CardModel(
        "a100-40gb",
        ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB", "A100-SXM4-40GB", "A100-PCIE-40GB"),
        40960,
        108,
        (8, 0),
        True,
        _GA100_DRIVER,
    ),
    CardModel("h800-80gb", ("NVIDIA H800", "NVIDIA H800 PCIe"), 81559, 132, (9, 0), True, _GH100_DRIVER),
    CardModel("h100-80gb", ("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe"), 81559, 132, (9, 0), True, _GH100_DRIVER),
    CardModel("l40s-48gb", ("NVIDIA L40S",), 46068, 142, (8, 9), False, _AD102_DRIVER),
    CardModel(
        "v100-32gb", ("Tesla V100-SXM2-32GB", "Tesla V100-PCIE-32GB", "Tesla V100-SXM3-32GB"), 32768, 80, (7, 0), False, _GATE_DRIVER
    ),
    CardModel("v100-16gb", ("Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB"), 16384, 80, (7, 0), False, _GATE_DRIVER),
    CardModel("t4-16gb", ("Tesla T4", "NVIDIA T4"), 15360, 40, (7, 5), False, _GATE_DRIVER),
)
_BY_NAME = {model.name: model for model in MODELS}
_BY_PRODUCT_NAME = {product.casefold(): model for model in MODELS for product in model.product_names}


def named(name: str) -> CardModel:
    """The model with that name in Tenfold's files, such as ``a800-80gb``.

    Errors: CardError listing the names that exist.
    """
    model = _BY_NAME.get(name) if isinstance(name, str) else None
    if model is None:
        known = ", ".join(sorted(_BY_NAME))
        raise CardError(f"card model is {name!r}, expected one of: {known}", card=str(name), known=sorted(_BY_NAME))
    return model


def by_product_name(text: str) -> CardModel | None:
    """The model that NVML or ``nvidia-smi`` calls so (``NVIDIA A800-SXM4-80GB``), or None for a card that the table lacks."""
    return _BY_PRODUCT_NAME.get(" ".join(text.split()).casefold())

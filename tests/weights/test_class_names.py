"""The names of ImageNet's classes, beside a library that has them too."""

from vitkit.weights.outputs import imagenet_labels


def test_imagenets_names_are_torchvisions_but_for_those_that_mean_two_things():
    from torchvision.models import ViT_B_16_Weights

    torchvision = ViT_B_16_Weights.IMAGENET1K_V1.meta["categories"]
    renamed = {134: "crane (bird)", 517: "crane (machine)", 639: "maillot, tank suit"}
    expected = [renamed.get(i, name) for i, name in enumerate(torchvision)]
    assert list(imagenet_labels()) == expected
    assert len(set(expected)) == 1000

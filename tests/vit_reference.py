"""A Vision Transformer written a second time, slowly and plainly: no fused kernel, no nn.Module, heads in a loop.

It reads a state dict in timm's names and follows the papers that ``ViTConfig`` names, not the code under test.
Shapes: B images, N tokens, D width, d channels of a head.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vit_reference_positions import offset_bias, rope
from vitreous.model.config import ViTConfig, pair

Weights = dict[str, Tensor]
Seen = dict[str, list[Tensor]]  # by name what was computed, one entry per block, or per head of each block in order


def small_config(**overrides: object) -> ViTConfig:
    """A rectangular picture of 3 x 4 patches, two blocks, three heads of 8 channels."""
    fields = {
        "image_size": (12, 16),
        "patch_size": 4,
        "num_classes": 5,
        "width": 24,
        "depth": 2,
        "heads": 3,
        "mlp_dim": 40,
    }
    head = overrides.pop("head", "linear")
    head = {"zero": False} | (head if isinstance(head, dict) else {"kind": head})
    return ViTConfig(**(fields | overrides), head=head)  # type: ignore[arg-type]


def stir(model: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Draw every parameter and buffer anew, so that none is zero or one and a forgotten one shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            if not tensor.is_floating_point():
                continue
            noise = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
            if name.endswith("running_var"):
                tensor.copy_(noise.abs() + 0.5)
            elif tensor.ndim == 1 and name.endswith("weight"):  # the gain of a norm
                tensor.copy_(1 + 0.3 * noise)
            else:
                tensor.copy_(noise / math.sqrt(max(4, tensor[0].numel())) if tensor.ndim > 1 else 0.2 * noise)
    return model


def linear(x: Tensor, w: Weights, name: str) -> Tensor:
    y = torch.einsum("...i,oi->...o", x, w[f"{name}.weight"])
    if f"{name}.bias" not in w:
        return y
    bias, rows = w[f"{name}.bias"], y.shape[-1]
    if len(bias) != rows:  # queries and values have a bias, keys have none
        bias = torch.cat((bias[: rows // 3], torch.zeros(rows // 3, dtype=bias.dtype), bias[rows // 3 :]))
    return y + bias


def layer_norm(x: Tensor, w: Weights, name: str, eps: float) -> Tensor:
    if f"{name}.bias" not in w:  # RMSNorm
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * w[f"{name}.weight"]
    mean = x.mean(-1, keepdim=True)
    variance = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def softmax(x: Tensor, dim: int) -> Tensor:
    e = torch.exp(x - x.amax(dim, keepdim=True))
    return e / e.sum(dim, keepdim=True)


def activate(x: Tensor, name: str) -> Tensor:
    if name == "gelu":
        return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    if name == "gelu-tanh":
        return x * 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    if name in ("silu", "quick-gelu"):
        return x / (1 + torch.exp(-(1.702 if name == "quick-gelu" else 1) * x))
    if name == "none":
        return x
    return torch.tanh(x) if name == "tanh" else torch.where(x > 0, x, torch.zeros_like(x))


def conv_norm(x: Tensor, w: Weights, conv: str, norm: str, stride: int, flavour: str) -> Tensor:
    """Weight-standardised convolution padded as SAME, then group norm of 32 groups."""
    kernel = w[f"{conv}.weight"]
    mean = kernel.mean((1, 2, 3), keepdim=True)
    variance = ((kernel - mean) ** 2).mean((1, 2, 3), keepdim=True)
    kernel = (kernel - mean) / (variance.sqrt() + 1e-5 if flavour == "google" else (variance + 1e-8).sqrt())
    y = torch.nn.functional.conv2d(same(x, kernel.shape[-1], stride, 0.0), kernel, stride=stride)
    groups = y.reshape(len(y), 32, -1)
    mean = groups.mean(-1, keepdim=True)
    variance = ((groups - mean) ** 2).mean(-1, keepdim=True)
    y = ((groups - mean) / torch.sqrt(variance + (1e-6 if flavour == "google" else 1e-5))).reshape(y.shape)
    return y * w[f"{norm}.weight"][:, None, None] + w[f"{norm}.bias"][:, None, None]


def same(x: Tensor, kernel: int, stride: int, value: float) -> Tensor:
    """TensorFlow's SAME: as many windows as strides that begin inside, the odd row and column of padding last."""
    need = [max(0, (math.ceil(n / stride) - 1) * stride + kernel - n) for n in x.shape[2:]]
    top, left = need[0] // 2, need[1] // 2
    out = x.new_full((*x.shape[:2], x.shape[2] + need[0], x.shape[3] + need[1]), value)
    out[:, :, top : top + x.shape[2], left : left + x.shape[3]] = x
    return out


def resnet(x: Tensor, w: Weights, c: ViTConfig) -> Tensor:
    """ResNetV2 of the hybrids: root, max pool, then stages of post-activation bottlenecks."""
    root, flavour = "patch_embed.backbone", c.stem.norm
    x = activate(conv_norm(x, w, f"{root}.stem.conv", f"{root}.stem.norm", 2, flavour), "relu")
    x = same(x, 3, 2, -1e30).unfold(2, 3, 2).unfold(3, 3, 2).amax((-2, -1))
    for i, length in enumerate(c.stem.layers):
        for j in range(length):
            name, stride = f"{root}.stages.{i}.blocks.{j}", 2 if i and not j else 1
            y = activate(conv_norm(x, w, f"{name}.conv1", f"{name}.norm1", 1, flavour), "relu")
            y = activate(conv_norm(y, w, f"{name}.conv2", f"{name}.norm2", stride, flavour), "relu")
            y = conv_norm(y, w, f"{name}.conv3", f"{name}.norm3", 1, flavour)
            if f"{name}.downsample.conv.weight" in w:
                x = conv_norm(x, w, f"{name}.downsample.conv", f"{name}.downsample.norm", stride, flavour)
            x = activate(x + y, "relu")
    return x


def patches(images: Tensor, w: Weights, c: ViTConfig) -> tuple[Tensor, tuple[int, int]]:
    """x_p E, one patch after the other in raster order: B x n x D."""
    (ph, pw), x = pair(c.patch_size), images
    if c.stem.kind == "conv":  # batch norm in evaluation
        layer, pooled = 0, c.stem.downsample == "max-pool"
        while f"patch_embed.backbone.{layer}.0.weight" in w:
            name = f"patch_embed.backbone.{layer}"
            x = torch.nn.functional.conv2d(x, w[f"{name}.0.weight"], stride=1 if pooled else 2, padding=1)
            x = x.unfold(2, 2, 2).unfold(3, 2, 2).amax((-2, -1)) if pooled else x
            norm = f"{name}.{1 + pooled}"
            mean, variance = w[f"{norm}.running_mean"], w[f"{norm}.running_var"]
            gain = w[f"{norm}.weight"] / torch.sqrt(variance + 1e-5)
            shift = w[f"{norm}.bias"] - mean * gain
            x = activate(x * gain[:, None, None] + shift[:, None, None], "gelu")
            layer += 1
        ph = pw = 1
    if c.stem.kind == "resnet":
        x = resnet(x, w, c)
        ph, pw = ph * x.shape[2] // images.shape[2], pw * x.shape[3] // images.shape[3]
    rows, columns = x.shape[2] // ph, x.shape[3] // pw
    kernel = w["patch_embed.proj.weight"]
    bias = w.get("patch_embed.proj.bias", torch.zeros(1, dtype=kernel.dtype))
    if c.stem.kind == "conv":  # one cell a token, with its neighbours or without
        x = same(x, kernel.shape[2], 1, 0.0)
    out = []
    for r in range(rows):
        for q in range(columns):
            cut = x[:, :, r * ph : r * ph + kernel.shape[2], q * pw : q * pw + kernel.shape[3]]
            out.append(torch.einsum("bcij,dcij->bd", cut, kernel) + bias)
    tokens = torch.stack(out, 1)
    return (activate(tokens, "relu") if c.stem.activation == "relu" else tokens), (rows, columns)


def embed(images: Tensor, w: Weights, c: ViTConfig) -> tuple[Tensor, tuple[int, int]]:
    """Equation 1: all tokens with their positions, none dropped: B x N x D."""
    x, (rows, columns) = patches(images, w, c)
    prefix = [w[name][0] for name in ("cls_token", "reg_token") if name in w]
    front = torch.cat(prefix) if prefix else x.new_zeros(0, c.width)
    if c.position.kind == "learned" or getattr(c.position, "absolute", "none") != "none":
        table = w["pos_embed"][0]
        own = len(table) - rows * columns
        front = torch.stack([front[i] + table[i] if i < own else front[i] for i in range(len(front))] or [front.sum(0)])
        front = front[: len(prefix) and sum(map(len, prefix))]
        x = x + table[own:]
    elif c.position.kind == "learned-2d":
        row, column = w["pos_embed_row"][0], w["pos_embed_column"][0]
        x = x + torch.stack([torch.cat((row[r], column[q])) for r in range(rows) for q in range(columns)])
    elif c.position.kind == "sincos-2d":  # Simple ViT: x sine, x cosine, y sine, y cosine, D/4 frequencies each
        quarter = c.width // 4
        omega = [10_000 ** (-k / (quarter - 1)) for k in range(quarter)]
        table = [
            [f(place * o) for place in (q, r) for f in (math.sin, math.cos) for o in omega]
            for r in range(rows)
            for q in range(columns)
        ]
        x = x + torch.tensor(table, dtype=x.dtype)
    return torch.cat((front.expand(len(x), -1, -1), x), 1), (rows, columns)


def note(seen: Seen | None, **tensors: Tensor) -> None:
    """Keep tensors, which are part of the graph, for a test that wants to see them or differentiate by them."""
    for name, tensor in tensors.items() if seen is not None else ():
        seen.setdefault(name, []).append(tensor)


def attention(
    x: Tensor, w: Weights, name: str, c: ViTConfig, kept: list[list[int]], grid: tuple[int, int], seen: Seen | None
) -> Tensor:
    """Appendix A, a head at a time; ``kept`` lists the raster index of each patch token of each image."""
    D, d, P = c.width, c.width // c.heads, c.prefix_tokens
    qkv, heads = linear(x, w, f"{name}.qkv"), []
    for h in range(c.heads):
        q, k, v = (qkv[..., part * D + h * d : part * D + (h + 1) * d] for part in range(3))  # B N d
        if c.attention.qk_norm:
            q, k = layer_norm(q, w, f"{name}.q_norm", c.norm_eps), layer_norm(k, w, f"{name}.k_norm", c.norm_eps)
        if c.position.kind.startswith("rope"):
            places = [[divmod(i, grid[1]) for i in image] for image in kept]
            own = w[f"{name}.rope_frequencies"][:, h] if c.position.kind == "rope-mixed" else torch.zeros(0)
            q, k = rope(q, places, c, grid, own), rope(k, places, c, grid, own)
        scores = torch.einsum("bnd,bmd->bnm", q, k) / math.sqrt(d)
        if c.position.kind in ("relative-bias", "relative-mlp"):
            scores = scores + torch.stack([offset_bias(w, name, c, image, grid[1], h, P) for image in kept])
        if c.position.kind == "relative":
            last = grid[0] * grid[1] - 1
            rows = []
            for b, image in enumerate(kept):
                offsets = torch.tensor([[i - j + last for j in image] for i in image])
                keys = w[f"{name}.relative"][offsets]  # n n d
                extra = torch.einsum("nd,nmd->nm", q[b, P:], keys) / math.sqrt(d)
                top = torch.zeros(P, P + len(image), dtype=x.dtype)
                rows.append(torch.cat((top, torch.cat((torch.zeros(len(image), P, dtype=x.dtype), extra), 1))))
            scores = scores + torch.stack(rows)
        apart = torch.zeros(scores.shape[1:], dtype=torch.bool)
        if c.attention.kind == "axial":  # appendix D.6: the pairs of one row in blocks 0, 2, ..., of one column in 1, 3
            line = [divmod(i, grid[1])[int(name.split(".")[1]) % 2] for i in kept[0]]
            apart = torch.tensor([[a != b for b in line] for a in line])
        share = softmax(torch.where(apart, -torch.inf, scores), -1)  # B N N
        heads.append(torch.einsum("bnm,bmd->bnd", torch.where(apart, 0, share), v))  # no gradient by what is apart
        note(seen, q=q, k=k, v=v, share=share, mixed=heads[-1])
    mixed = torch.cat(heads, -1)
    mixed = layer_norm(mixed, w, f"{name}.norm", c.norm_eps) if c.attention.out_norm else mixed
    return linear(mixed, w, f"{name}.proj")


def mlp(x: Tensor, w: Weights, name: str, c: ViTConfig) -> Tensor:
    hidden = linear(x, w, f"{name}.fc1")
    if len(hidden[0, 0] if hidden.ndim == 3 else hidden[0]) == 2 * len(w[f"{name}.fc2.weight"][0]):  # gated
        gate, value = hidden.split(hidden.shape[-1] // 2, -1)
        hidden = activate(gate, c.mlp.activation) * value
    else:
        hidden = activate(hidden, c.mlp.activation)
    hidden = layer_norm(hidden, w, f"{name}.norm", c.norm_eps) if f"{name}.norm.weight" in w else hidden
    return linear(hidden, w, f"{name}.fc2")


def before_block(z: Tensor, w: Weights, c: ViTConfig, i: int, kept: list[list[int]], columns: int) -> Tensor:
    """Appendix D.4, "every layer" and "shared": block i > 0 reads z + E, with E its own or that of equation 1."""
    own = f"blocks.{i}." if c.position.layers == "every" else ""
    images = []
    for image in kept:
        if c.position.kind == "learned":
            table = w[f"{own}pos_embed"][0]
            rest = len(table) - c.patches  # of the prefix tokens, the first have a position
            prefix = [table[n] if n < rest else torch.zeros_like(table[0]) for n in range(c.prefix_tokens)]
            places = [table[rest + n] for n in image]
        else:
            row, column = w[f"{own}pos_embed_row"][0], w[f"{own}pos_embed_column"][0]
            prefix = [z.new_zeros(c.width)] * c.prefix_tokens
            places = [torch.cat((row[n // columns], column[n % columns])) for n in image]
        images.append(torch.stack(prefix + places))
    return z + torch.stack(images)


def encode(
    z: Tensor, w: Weights, c: ViTConfig, kept: list[list[int]], grid: tuple[int, int], seen: Seen | None = None
) -> Tensor:
    """Equations 2 and 3, block after block, and the norm of equation 4 where it stands before pooling."""
    for i in range(c.depth):
        name = f"blocks.{i}"
        if i and getattr(c.position, "layers", "first") != "first":
            z = before_block(z, w, c, i, kept, grid[1])
        note(seen, before=z)
        scales = [w.get(f"{name}.ls{n}.gamma", torch.ones(1, dtype=z.dtype)) for n in (1, 2)]
        if c.block.kind == "norm-after":
            z = z + layer_norm(attention(z, w, f"{name}.attn", c, kept, grid, seen), w, f"{name}.norm1", c.norm_eps)
            z = z + layer_norm(mlp(z, w, f"{name}.mlp", c), w, f"{name}.norm2", c.norm_eps)
        elif c.block.kind == "parallel":
            y = layer_norm(z, w, f"{name}.norm1", c.norm_eps)
            z = z + scales[0] * (attention(y, w, f"{name}.attn", c, kept, grid, seen) + mlp(y, w, f"{name}.mlp", c))
        else:
            y = layer_norm(z, w, f"{name}.norm1", c.norm_eps)
            z = z + scales[0] * attention(y, w, f"{name}.attn", c, kept, grid, seen)
            z = z + scales[1] * mlp(layer_norm(z, w, f"{name}.norm2", c.norm_eps), w, f"{name}.mlp", c)
        note(seen, after=z)
    return layer_norm(z, w, "norm", c.norm_eps) if c.final_norm == "tokens" else z


def head(z: Tensor, w: Weights, c: ViTConfig, seen: Seen | None = None) -> Tensor:
    """Pool and classify."""
    note(seen, tokens=z)
    P = c.prefix_tokens
    if c.pool.kind in ("map", "seq") and c.pool.prefix is False:
        z = z[:, P:]
    if c.pool.kind == "cls":
        y = z[:, 0]
    elif c.pool.kind == "prefix":
        y = torch.cat([z[:, n] for n in range(P)], -1)
    elif c.pool.kind in ("mean", "cls-mean"):
        first = P if not c.pool.prefix else 0
        y = sum(z[:, n] for n in range(first, z.shape[1])) / (z.shape[1] - first)
        y = torch.cat((z[:, 0], y), 1) if c.pool.kind == "cls-mean" else y
    elif c.pool.kind == "seq":
        share = softmax(linear(z, w, "seq_pool.score"), 1)  # B N 1
        y = (share * z).sum(1)
        note(seen, pool_share=share)
    else:
        heads = c.pool.heads or c.heads
        D, d, outs = c.width, c.width // heads, []
        q, kv = linear(w["attn_pool.latent"][0], w, "attn_pool.q"), linear(z, w, "attn_pool.kv")
        for h in range(heads):
            k, v = kv[..., h * d : (h + 1) * d], kv[..., D + h * d : D + (h + 1) * d]
            scores = torch.einsum("d,bnd->bn", q[0, h * d : (h + 1) * d], k) / math.sqrt(d)
            share = softmax(scores, -1)
            outs.append(torch.einsum("bn,bnd->bd", share, v))
            note(seen, pool_share=share)
        y = linear(torch.cat(outs, -1), w, "attn_pool.proj")
        y = y + mlp(layer_norm(y, w, "attn_pool.norm", c.norm_eps), w, "attn_pool.mlp", c)
    if c.final_norm == "pooled":
        y = layer_norm(y, w, "fc_norm", c.norm_eps)
    if c.head.kind == "mlp":
        y = activate(linear(y, w, "pre_logits.fc"), c.head.activation)
    return linear(y, w, "head") if c.num_classes else y


def reference(
    images: Tensor, w: Weights, c: ViTConfig, kept: list[list[int]] | None = None, seen: Seen | None = None
) -> Tensor:
    """Logits B x K; with ``kept`` only those patches of each image, by raster index, pass through the encoder."""
    z, grid = embed(images, w, c)
    P = c.prefix_tokens
    z = layer_norm(z, w, "norm_pre", c.norm_eps) if c.input_norm else z
    if kept is None:
        kept = [list(range(grid[0] * grid[1]))] * len(images)
    z = torch.stack([image[list(range(P)) + [P + i for i in chosen]] for image, chosen in zip(z, kept, strict=True)])
    return head(encode(z, w, c, kept, grid, seen), w, c, seen)


def head_of(model: torch.nn.Module, tokens: Tensor, output: str = "logits") -> Tensor:
    """What a model makes of tokens behind its final norm: features, or logits."""
    features = model.pre_logits(model.fc_norm(model.pool(tokens)))
    return features if output == "features" else model.head(features)

"""The ARC agent: text encoder, convolutional agent and prompt policy, golden/models/arcagent.

The text encoder is transformers' Qwen2Model, the rest is written from the specification. With --arcefe DIR, a checkout of
wonnowone/ARC-EFE at commit d9e76e2, the same weights run through that repository's ARCPromptGuidedAgentGPU and
HumanRLAugmentor, and golden.json records how far the two are apart in float64.
"""
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import Qwen2Config, Qwen2Model

import hf
import record

C = dict(model_type="arcagent", num_colors=10, prompt_dim=16, hidden_dim=12, encoder_dim=8, max_steps=3,
         policy=dict(ctrl_dim=6, feat_dim=4, hidden=10, delta_scale=0.2),
         text=dict(model_type="qwen2", vocab_size=30, hidden_size=16, intermediate_size=20, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
                   max_position_embeddings=64, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=10000.0)))


def mlp(i, hidden, o):
    return nn.Sequential(nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, o))


class Text(nn.Module):
    """prompt = proj(mean over the tokens of the encoder's last hidden state)"""

    def __init__(self):
        super().__init__()
        self.transformer = Qwen2Model(Qwen2Config(attn_implementation="eager", **C["text"]))
        self.proj = nn.Linear(C["text"]["hidden_size"], C["prompt_dim"])

    def forward(self, ids):
        hidden = self.transformer(input_ids=ids, use_cache=False).last_hidden_state
        return self.proj(hidden.mean(1))[0], hidden


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        k, e, h = C["num_colors"], C["encoder_dim"], C["hidden_dim"]
        self.input_encoder = nn.Sequential(nn.Conv2d(k, e, 3, padding=1), nn.ReLU(), nn.Conv2d(e, h, 3, padding=1), nn.ReLU())
        self.prompt_processor = nn.Sequential(nn.Linear(C["prompt_dim"], h), nn.ReLU(), nn.Linear(h, h))
        self.fusion = nn.Sequential(nn.Conv2d(2 * h, h, 1), nn.ReLU(), nn.Conv2d(h, h, 3, padding=1), nn.ReLU())
        self.planning_steps = nn.ModuleList(nn.Sequential(nn.Conv2d(h, h, 3, padding=1), nn.ReLU(), nn.Conv2d(h, k, 1)) for _ in range(C["max_steps"]))

    def features(self, grid, prompt):
        x = F.one_hot(grid, C["num_colors"]).permute(2, 0, 1)[None].to(prompt.dtype)
        x = self.input_encoder(x)
        p = self.prompt_processor(prompt)[None, :, None, None].expand_as(x)
        return self.fusion(torch.cat([x, p], 1))

    def forward(self, grid, prompt):
        state = self.features(grid, prompt)
        return torch.cat([step(state) for step in self.planning_steps]).permute(0, 2, 3, 1)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        p, h, x = C["prompt_dim"], C["policy"]["hidden"], C["prompt_dim"] + C["policy"]["ctrl_dim"] + C["policy"]["feat_dim"]
        self.pi_mean, self.alpha_head, self.v = mlp(x, h, p), mlp(x, h, 1), mlp(x, h, 1)
        self.pi_logstd = nn.Parameter(torch.zeros(p))
        self.phi, self.phi_pred = mlp(x, h, h), mlp(x + p, h, h)

    def forward(self, prompt, ctrl, feat, noise):
        x = torch.cat([prompt, ctrl, feat])
        mu, alpha = self.pi_mean(x), torch.sigmoid(self.alpha_head(x))
        u = mu + self.pi_logstd.exp() * noise
        delta = C["policy"]["delta_scale"] * torch.tanh(u)
        return dict(x=x, mu=mu, u=u, delta=delta, alpha=alpha, refined=prompt + alpha * delta, value=self.v(x))

    def evaluate(self, x, u):
        """log pi(u|x) of delta = scale*tanh(u) by torch.distributions, V(x), and the entropy of the Gaussian of u"""
        gauss = torch.distributions.Independent(torch.distributions.Normal(self.pi_mean(x), self.pi_logstd.exp()), 1)
        squash = [torch.distributions.TanhTransform(cache_size=1), torch.distributions.AffineTransform(0.0, C["policy"]["delta_scale"], cache_size=1)]
        action = torch.distributions.TransformedDistribution(gauss, squash)
        y = u
        for f in squash:
            y = f(y)  # the caches give u back exactly
        return action.log_prob(y), self.v(x)[0], gauss.entropy()

    def curiosity(self, x, a, following):
        return (self.phi_pred(torch.cat([x, a])) - self.phi(following)).square().mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qwen, self.agent, self.policy_rl = Text(), Agent(), Policy()


def agent(out, directory):
    rng, m = record.generator("arcagent"), Model()
    record.fill(m, rng)
    folder = os.path.join(out, "arcagent")
    record.save_weights(folder, m, C)

    wide = lambda *s: torch.from_numpy(rng.normal(size=s))
    t = dict(rule_ids=torch.from_numpy(rng.integers(0, C["text"]["vocab_size"], size=(1, 9))), grid=torch.from_numpy(rng.integers(0, 10, size=(4, 5))),
             target=torch.from_numpy(rng.integers(0, 10, size=(6, 3))), ctrl=wide(C["policy"]["ctrl_dim"]), feat=wide(C["policy"]["feat_dim"]), noise=wide(C["prompt_dim"]))
    reward = 0.375

    def resized(logits):
        return F.interpolate(logits.permute(0, 3, 1, 2), size=tuple(t["target"].shape), mode="bilinear", align_corners=False).permute(0, 2, 3, 1)

    def run(prefix, dtype):
        ctrl, feat, noise = (t[n].to(dtype) for n in ("ctrl", "feat", "noise"))
        prompt, hidden = m.qwen(t["rule_ids"])
        before = m.agent(t["grid"], prompt)
        step = m.policy_rl(prompt, ctrl, feat, noise)
        after = m.agent(t["grid"], step["refined"])
        at_target = resized(after)
        logp = torch.log_softmax(at_target, -1)
        of_target = logp[-1].gather(-1, t["target"][..., None])[..., 0]
        following = torch.cat([step["refined"], ctrl, feat]).detach()
        x, u = step["x"].detach(), step["u"].detach()
        pi, value, entropy = m.policy_rl.evaluate(x, u)
        icm = m.policy_rl.curiosity(x, step["delta"].detach(), following)
        advantage = reward - value.detach()
        rl = -pi * advantage + 0.5 * (value - reward) ** 2 - 0.01 * entropy + 0.1 * icm
        return {prefix + n: z for n, z in dict(
            hidden=hidden, prompt=prompt, logits_before=before, **step, features_after=m.agent.features(t["grid"], step["refined"]), logits_after=after, logits_resized=at_target, logp=of_target, mean_logp=of_target.mean(),
            policy_logp=pi, entropy=entropy, icm=icm, policy_loss=rl).items()}

    with torch.no_grad():
        t.update(run("float32/", torch.float32))
    m.double()
    with hf.lifted(m.qwen.transformer):
        values = run("float64/", torch.float64)
        t.update(values)
        t["predictions_before"], t["predictions_after"] = (values["float64/logits_" + n][-1].argmax(-1) for n in ("before", "after"))
        t["predictions_resized"] = F.interpolate(t["predictions_after"][None, None].double(), size=tuple(t["target"].shape), mode="nearest")[0, 0].long()
        t.update({"float64/grad/" + n: g for n, g in record.gradients(values["float64/mean_logp"], m).items()})
        t.update({"float64/policy_grad/" + n: g for n, g in record.gradients(values["float64/policy_loss"], m).items()})
        some = ["qwen.transformer.layers.0.self_attn.k_proj.weight", "qwen.proj.bias", "agent.input_encoder.0.weight", "agent.fusion.2.weight", "agent.planning_steps.2.2.bias", "policy_rl.pi_logstd", "policy_rl.alpha_head.4.weight"]
        checks = record.differences(lambda: run("", torch.float64)["mean_logp"], m, some, rng)
        held = {n: values["float64/" + n].detach() for n in ("x", "u", "delta", "refined", "value")}

        def policy_loss():  # the advantage, the sampled action and the states are constants
            pi, value, entropy = m.policy_rl.evaluate(held["x"], held["u"])
            icm = m.policy_rl.curiosity(held["x"], held["delta"], torch.cat([held["refined"], t["ctrl"], t["feat"]]))
            return -pi * (reward - held["value"][0]) + 0.5 * (value - reward) ** 2 - 0.01 * entropy + 0.1 * icm

        checks += record.differences(policy_loss, m.policy_rl, ["pi_mean.0.weight", "pi_logstd", "v.2.weight", "phi.0.weight", "phi_pred.4.bias"], rng)
    mu, std, u = (z.detach().numpy() for z in (t["float64/mu"], m.policy_rl.pi_logstd.exp(), t["float64/u"]))
    by_hand = sum(-0.5 * ((a - b) / s) ** 2 - math.log(s) - 0.5 * math.log(2 * math.pi) - math.log(0.2 * (1 - math.tanh(a) ** 2)) for a, b, s in zip(u, mu, std))
    assert abs(by_hand - t["float64/policy_logp"].item()) < 1e-12 * abs(by_hand), (by_hand, t["float64/policy_logp"])
    about = dict(
        versions=record.versions("torch", "transformers"), spec={**C, "reward": reward},
        meaning={
            "float32/": "the model as saved, float32", "float64/": "the same weights in float64; the float32 islands of transformers' Qwen2Model are lifted",
            "prompt": "qwen.proj(mean over tokens of hidden)", "logits_before": "[T,H,W,10] of the agent given prompt", "logits_after": "given refined", "features_after": "[1,C,H,W] after fusion, given refined",
            "x": "[prompt, ctrl, feat]", "u": "mu + exp(pi_logstd)*noise", "delta": "0.2*tanh(u)", "refined": "prompt + alpha*delta",
            "logits_resized": "logits_after at the size of target, bilinear, align_corners=False", "predictions_": "argmax of the last step; resized: nearest",
            "logp": "log p(target) of the last step of logits_resized", "mean_logp": "its mean over cells; grad/ is its gradient",
            "policy_logp": "density of delta at u", "entropy": "of the Gaussian of u", "icm": "mean of (phi_pred([x, delta]) - phi([refined, ctrl, feat]))^2",
            "policy_loss": "-policy_logp*A + (value - reward)^2/2 - entropy/100 + icm/10, A = reward - value held; x, u, delta, refined are constants; policy_grad/ is its gradient",
        },
        gradient_finite_difference=checks,
    )
    if directory:
        about["peer_check"] = compare(directory, m, t)
    record.save_golden(folder, t, about)
    record.save_manifest(folder, "golden/gen/models/produce.py", ["torch", "transformers", "safetensors", "numpy"])


def compare(directory, m, t):
    sys.path.insert(0, directory)
    from grid_accuracy_loss import ARCPromptGuidedAgentGPU
    from policy_refined import HumanRLAugmentor, HumanRLConfig
    theirs = ARCPromptGuidedAgentGPU(hidden_dim=C["hidden_dim"], prompt_dim=C["prompt_dim"], max_steps=C["max_steps"])
    k, e, h = C["num_colors"], C["encoder_dim"], C["hidden_dim"]
    theirs.input_encoder[0], theirs.input_encoder[2] = nn.Conv2d(k, e, 3, padding=1), nn.Conv2d(e, h, 3, padding=1)  # it has hidden_dim/2 there
    theirs.double().load_state_dict(m.agent.state_dict())
    grid = F.one_hot(t["grid"], k).permute(2, 0, 1).double()
    cast, torch.Tensor.float = torch.Tensor.float, torch.Tensor.double
    try:
        after = theirs(grid, t["float64/refined"].detach(), C["max_steps"])[0]
    finally:
        torch.Tensor.float = cast
    p = C["policy"]
    policy = HumanRLAugmentor(HumanRLConfig(prompt_dim=C["prompt_dim"], ctrl_dim=p["ctrl_dim"], feat_dim=p["feat_dim"], hidden=p["hidden"]), device="cpu").double()
    policy.load_state_dict(m.policy_rl.state_dict())
    draw, torch.randn_like = torch.randn_like, lambda z: t["noise"].expand_as(z)
    try:
        refined, info = policy.apply(t["float64/prompt"].detach(), t["ctrl"], t["feat"])
    finally:
        torch.randn_like = draw
    worst = {"logits_after": record.worst(after.detach(), t["float64/logits_after"].detach()), "refined": record.worst(refined.detach(), t["float64/refined"].detach()),
             "value": record.worst(info["value"].detach(), t["float64/value"].detach()), "delta": record.worst(info["delta"].detach()[0], t["float64/delta"].detach())}
    assert max(worst.values()) < 1e-13, worst
    return {"peer": "wonnowone/ARC-EFE grid_accuracy_loss.py and policy_refined.py, commit d9e76e2", "worst": worst}

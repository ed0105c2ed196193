package golden

import (
	"plumbline/reference/rl"
)

// GAE judges generalised advantage estimates, returns, and the rollout and minibatch of TRL's PPO.
var GAE = gae.check()

var gae = &section{
	name:  "gae",
	title: "advantages and returns are those of the frameworks",
	doc: `Recomputes GAE with the frameworks' rules for holes, reward-to-go, OpenRLHF's whole driver (group baseline, reward clip,
score placement, KL, whitening) and the statements of TRL's PPO that make rewards, advantages and the losses of a
minibatch. Compares advantages, returns, rewards, KL, masks, losses and gradients.`,
	source: "Schulman et al. 2016, Eq. 16; options gae.*, whiten.*, score.*; reference/rl GAE, RewardToGo, TokenRewards, Whiten",
	functions: map[string]recompute{
		"verl compute_gae_advantage_return":                             verlGAE,
		"openrlhf RemoteExperienceMaker.get_advantages_and_returns":     openrlhfGAE,
		"openrlhf RemoteExperienceMaker.get_cumulative_returns":         openrlhfReturns,
		"openrlhf RemoteExperienceMaker.compute_advantages_and_returns": openrlhfDriver,
		"trl-ppo PPOTrainer.train (rollout statements)":                 trlRollout,
		"trl-ppo PPOTrainer.train (minibatch statements)":               trlMinibatch,
	},
	faults: gaeFaults,
}

// rollout reads the inputs of a GAE entry of verl or OpenRLHF.
func rollout(c *call) rl.Rollout {
	r, rows, cols := c.grid("token_level_rewards")
	return rl.Rollout{Rows: rows, Cols: cols, Reward: r, Value: c.shaped("values", rows, cols), Mask: c.mask("response_mask", rows, cols)}
}

// recursion is the options of GAE and returns.
func (c *call) recursion(profile string, given native) rl.GAEOptions {
	o := c.conventions(profile, given)
	g := o.GAE()
	c.said(o)
	return g
}

// verlGAE carries the recursion over holes; with whiten it whitens over the mask.
func verlGAE(c *call) []answer {
	b := rollout(c)
	o, w := c.recursion(verlPPOProfile, native{{Name: "gamma", Value: c.scalar("gamma")}, {Name: "lam", Value: c.scalar("lam")}}), c.whitenOf("verl", true)
	whiten := c.flag("whiten")
	if !c.ok() {
		return nil
	}
	adv, ret := rl.GAE(nil, nil, b, o)
	var err error
	if whiten {
		adv, err = rl.Whiten(adv, adv, b.Mask, b.Rows, b.Cols, w)
	}
	return []answer{plain("returns", ret...), refused("advantages", adv, err)}
}

// openrlhfGAE makes a hole a step without reward and value.
func openrlhfGAE(c *call) []answer {
	b := rollout(c)
	o := c.recursion(openrlhfPPOProfile, native{{Name: "gamma", Value: c.scalar("gamma")}, {Name: "lambd", Value: c.scalar("lam")}})
	if c.flag("whiten") {
		c.undetermined("whiten true: OpenRLHF's function does not whiten")
	}
	if !c.ok() {
		return nil
	}
	adv, ret := rl.GAE(nil, nil, b, o)
	return []answer{plain("advantages", adv...), plain("returns", ret...)}
}

func openrlhfReturns(c *call) []answer {
	b := rollout(c)
	o := c.recursion(openrlhfPPOProfile, native{{Name: "estimator", Value: "reinforce"}, {Name: "gamma", Value: c.scalar("gamma")}})
	if !c.ok() {
		return nil
	}
	return []answer{plain("returns", rl.RewardToGo(nil, b.Reward, b.Mask, b.Rows, b.Cols, o.Gamma, o.Hole)...)}
}

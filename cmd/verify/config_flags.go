package main

import (
	"strings"

	"plumbline/internal/config"
	"plumbline/verify/convention"
)

// leftOut are what the program of openrlhf.cli.train_ppo_ray takes where its command does not say it, as far as a profile leaves it open: flags
// of argparse's store_true, and the default of the estimator that decides where the KL goes.
var leftOut = []struct {
	name  string
	value any
}{
	{"algo.advantage.estimator", "gae"}, {"algo.kl.use_loss", false}, {"algo.kl.unbiased_gradient", false}, {"algo.advantage.no_std_norm", false},
}

// withFlagsLeftOut adds to the configuration of a command what it says by not saying it. A command of which the script does not decide a
// word may have any flag.
func withFlagsLeftOut(c *config.File, framework string) {
	if !strings.HasPrefix(framework, "openrlhf") || !strings.Contains(c.Program, "train_ppo_ray") || c.Open {
		return
	}
	said := map[string]bool{}
	for _, name := range leaves(nil, "", c.Tree) {
		said[convention.NativeName(framework, name)] = true
	}
	for _, u := range c.Unread {
		said[convention.NativeName(framework, u.Name)] = true
	}
	for _, f := range leftOut {
		if !said[f.name] {
			c.Tree[f.name] = f.value
		}
	}
}

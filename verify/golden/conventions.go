package golden

import (
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// The profiles of the releases that the goldens were made by. What an entry's call does not say is theirs.
const (
	verlPPOProfile       = "verl-ppo@0.9"
	verlGRPOProfile      = "verl-grpo@0.9"
	trlPPOProfile        = "trl-ppo@1.12"
	trlGRPOProfile       = "trl-grpo@1.16"
	trlRLOOProfile       = "trl-rloo@1.16"
	openrlhfPPOProfile   = "openrlhf-ppo@0.11"
	openrlhfGroupProfile = "openrlhf-group@0.11"
)

// native is the arguments of a framework's function under the names of its configuration, which are those that
// [convention.Declare] reads. Goldens go through the tables and profiles that `--config` and dumps use: a wrong line there
// makes numbers that the framework did not have.
type native []convention.NameValue

func (n *native) set(name string, value any) {
	*n = append(*n, convention.NameValue{Name: name, Value: value})
}

// number passes on a numeric option of the entry, unless it is absent or null.
func (n *native) number(c *call, key, name string) {
	if c.used[key] = true; c.e.Options[key] != nil {
		n.set(name, c.value(key))
	}
}

// conventions returns what a profile and arguments over it mean to the reference. What the tables do not know, and what no
// option expresses, is noted.
func (c *call) conventions(profile string, given native) stage.Options {
	p, warning, err := convention.Lookup(profile)
	if err != nil || warning != "" {
		panic("golden: no profile " + profile)
	}
	set := convention.FromProfile(p)
	if !c.ok() {
		return stage.OptionsOf(set)
	}
	d, err := convention.Declare(p.Framework+" "+p.Algorithm, "", given, "")
	if err != nil {
		c.undetermined("%v", err)
		return stage.OptionsOf(set)
	}
	for _, name := range d.Unknown {
		c.undetermined("option not known to the tables: %s", name)
	}
	for _, s := range convention.Stages {
		if beyond := d.Set.Beyond(s); beyond != "" {
			c.undetermined("%s", beyond)
		}
	}
	set, _ = set.Over(d.Set)
	if c.e.bend != nil {
		set = c.e.bend(set)
	}
	return stage.OptionsOf(set)
}

// said notes an option that the conventions leave open, after all have been read.
func (c *call) said(o stage.Options) {
	if err := o.Err(); err != nil {
		c.undetermined("%v", err)
	}
}

// whitenProfiles are those whose statistics are the masked functions of each framework.
var whitenProfiles = map[string]string{"trl-ppo": trlPPOProfile, "openrlhf": openrlhfPPOProfile, "verl": verlPPOProfile}

// meanOf is the masked mean of a framework.
func (c *call) meanOf(peer string) rl.MeanOptions {
	o := c.conventions(whitenProfiles[peer], nil)
	m := o.Mean()
	c.said(o)
	return m
}

// whitenOf is masked_whiten of a framework over all cells, which refuses what its variance refuses.
func (c *call) whitenOf(peer string, shift bool) rl.WhitenOptions {
	o := c.conventions(whitenProfiles[peer], nil)
	w := o.Whiten(rl.ScopeGlobal)
	if w.Var.DDof == 1 {
		w.Var.Empty = rl.EmptyError
		w.Var.Single, _ = rl.ParseSingleRule(o.Word("whiten.single"))
	}
	if c.said(o); !shift {
		w.Shift = rl.ShiftFalseAddBack
	}
	return w
}

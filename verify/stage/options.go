package stage

import (
	"fmt"
	"math"
	"strings"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// Options gives package rl the options of a set, by the code that judges dumps. Goldens go through it: what proves the tables
// of package convention there proves what is read of them here.
type Options struct{ c *Case }

// OptionsOf returns the options of a set.
func OptionsOf(set *convention.Set) Options { return Options{NewCase(nil, set, 0)} }

// Err names the options that were asked for and that the set leaves open, nil if there are none.
func (o Options) Err() error {
	if o.c.OK() {
		return nil
	}
	return fmt.Errorf("the conventions do not say %s", strings.Join(append(o.c.Unknown, o.c.Absent...), ", "))
}

// Policy returns the policy loss without a KL term and its aggregation, whose counts of tokens and rows are the caller's. A
// loss without a ratio has one all the same, and its bounds: metrics are taken of them.
func (o Options) Policy() rl.PolicyOptions {
	c := o.c
	var p policy
	p.o.Kind, _ = rl.ParseLossKind(c.Enum("loss.kind"))
	c.kindOptions(&p)
	if !p.uses {
		p.o.Ratio = c.ratioOptions()
	}
	if p.o.Clip == (rl.ClipOptions{}) {
		p.o.Clip = c.clipOptions()
	}
	p.o.Agg = o.Aggregation()
	return p.o
}

// PolicyWithKL is Policy with the KL term of the loss.
func (o Options) PolicyWithKL() rl.PolicyOptions {
	p := o.Policy()
	if p.KLBeta = o.c.klInLoss(); p.KLBeta != 0 {
		p.KL = o.KL()
	}
	return p
}

// Aggregation returns how token losses are aggregated, without the counts.
func (o Options) Aggregation() rl.AggOptions {
	a, rows := o.c.aggKind(o.c.Enum("agg.kind"))
	o.c.aggRows(&a, rows)
	return a
}

// Divides reports whether the loss is divided by the accumulation steps.
func (o Options) Divides() bool { return o.c.boolWhere("agg.div_ga") }

// Value returns the value loss.
func (o Options) Value() rl.ValueOptions {
	return rl.ValueOptions{Factor: o.c.Num("value.factor"), Clip: o.c.NumOr("value.clip", 0), Agg: o.Aggregation()}
}

// KL returns the estimator of a KL term in the loss.
func (o Options) KL() rl.KLOptions { return o.c.klOptions(true) }

// Weights returns the weights for the mismatch between engine and trainer, of level none if there are none.
func (o Options) Weights() rl.TISOptions {
	level := o.c.inapplicable("tis.level", "none")
	if level == "none" {
		return rl.TISOptions{}
	}
	return o.c.tisOptions(level)
}

// GAE returns the recursion and the returns.
func (o Options) GAE() rl.GAEOptions {
	g := o.c.gaeOptions()
	g.Value, _ = rl.ParseValueMask(o.c.inapplicable("gae.value_mask", "response"))
	g.Returns, _ = rl.ParseReturnsMask(o.c.Enum("returns.remask"))
	return g
}

// Group returns how rewards become advantages of a group.
func (o Options) Group() rl.GroupOptions {
	g := o.c.groupOptions(o.c.Enum("adv.kind"))
	g.Singleton, _ = rl.ParseSingleton(o.c.inapplicable("adv.singleton", "error"))
	return g
}

// Mean returns the masked mean.
func (o Options) Mean() (m rl.MeanOptions) {
	m.Eps = o.c.Num("mean.eps")
	m.Empty, _ = rl.ParseEmptyRule(o.c.Enum("mean.empty"))
	m.Outside, _ = rl.ParseOutsideRule(o.c.Enum("mean.nan_outside"))
	return m
}

// Whiten returns how advantages are whitened over a scope.
func (o Options) Whiten(scope rl.Scope) rl.WhitenOptions {
	w := rl.WhitenOptions{Scope: scope}
	w.Shift, _ = rl.ParseShiftMean(o.c.Enum("whiten.shift_mean"))
	o.c.whitenMoments(&w)
	w.Var.Mean = o.Mean()
	w.Var.Empty = rl.EmptyNaN
	return w
}

// Word returns the value of an option that is a word, "" where it does not apply.
func (o Options) Word(name string) string { return o.c.inapplicable(name, "") }

// Flag returns the value of an option that is true or false.
func (o Options) Flag(name string) bool { return o.c.boolWhere(name) }

// Number returns the value of an option that is a number; +Inf stands for none.
func (o Options) Number(name string) float64 { return o.c.NumOr(name, math.Inf(1)) }

package convention

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/reference/rl"
)

// Every option of section 3 of the conventions, copied from its tables, has an entry. Others were added.
func TestOptionsAreThoseOfTheConventions(t *testing.T) {
	section3 := `mean.eps mean.empty mean.nan_outside whiten.scope whiten.mask whiten.ddof whiten.eps_place whiten.eps whiten.shift_mean
		whiten.remask whiten.single gae.gamma gae.lambda gae.lambda_policy gae.hole gae.value_mask gae.truncated_bootstrap
		returns.before_whiten returns.remask score.index rewards.whiten reward.clip eos.rule eos.penalty eos.test adv.kind adv.center
		adv.scale adv.ddof adv.eps adv.zero_std adv.singleton adv.group_by rfpp.mode adv.multi kl.kind kl.index_base kl.beta kl.adaptive
		kl.clamp_in kl.clamp_out kl.clamp_applies_to_k1 kl.grad kl.place kl.under_is_weight kl.reduce ratio.level ratio.log_clamp
		ratio.old loss.kind clip.low clip.high clip.high_is_absolute clip.dual clip.delta metric.clip_frac value.factor value.clip
		value.mask value.coef entropy.coef entropy.logits agg.kind agg.denominator agg.empty_rows agg.div_batch agg.len_eps agg.div_ga
		tis.level tis.rule tis.low tis.high tis.log_clamp tis.normalize tis.applies_to_kl logp.temperature logp.temp_eps logp.source
		logp.dtype align dropout optim.kind optim.eps optim.clip_norm optim.masters lora.scaling lora.bias_merge int8.const
		proj.against proj.target proj.passes`
	require.Subset(t, Names(), strings.Fields(section3))
}

// An enumeration of package rl is an option, whose legal values are its words, or it is a setting of one trainer alone.
func TestEveryEnumerationOfTheReferenceIsAnOption(t *testing.T) {
	var other []string
	for _, name := range rl.Enumerations() {
		o, err := Find(name)
		if err != nil {
			other = append(other, name)
			continue
		}
		require.Equal(t, rl.Words(name), o.Values, name)
	}
	require.Equal(t, []string{"adv_scope", "efe.bi", "unpaired.kind"}, other) // of train grpo and train arc; the algorithm says kto or bco
}

func TestOptionsAreDocumented(t *testing.T) {
	for _, o := range Options() {
		require.NotEmpty(t, o.Doc, o.Name)
		require.NotContains(t, o.Doc, "\n", o.Name)
		require.NotEmpty(t, o.Source, o.Name)
		require.NotEmpty(t, o.Legal(), o.Name)
		require.Equal(t, o.Type == BoolType, o.Values == nil && o.Type != NumberType && o.Type != OrNoneType && o.Type != PairType && o.Type != AdaptiveType && o.Type != SumType, o.Name)
		after := slices.ContainsFunc([]string{"optim.", "lora.", "int8.", "proj."}, func(p string) bool { return strings.HasPrefix(o.Name, p) })
		require.Equal(t, after, len(o.Stages) == 0, o.Name)
		for i, s := range o.Stages {
			require.Contains(t, Stages, s, o.Name)
			require.NotContains(t, o.Stages[:i], s, o.Name)
		}
		for i, text := range o.Values {
			v, err := o.Parse(text)
			require.NoError(t, err)
			require.True(t, v.Known(), "%s %s", o.Name, text)
			require.Equal(t, text, v.String(), "%s: a listed value is in the form that is printed", o.Name)
			require.NotContains(t, o.Values[:i], text, o.Name)
		}
	}
}

// draw returns a legal value of o as text.
func draw(t *rapid.T, o *Option) string {
	x := func(label string) string {
		f := rapid.OneOf(rapid.Float64Range(-1e6, 1e6), rapid.Float64(), rapid.SampledFrom([]float64{0, 1, -1, 0.2, 1e-8, 5e-324, math.MaxFloat64})).
			Filter(func(f float64) bool { return !math.IsNaN(f) && !math.IsInf(f, 0) }).Draw(t, label)
		switch o.Range {
		case NotNegative:
			f = math.Abs(f)
		case Positive:
			f = max(math.Abs(f), 5e-324)
		case Unit:
			f = math.Abs(f) / (1 + math.Abs(f))
		case AboveOne:
			f = math.Abs(f) + 1.5
		}
		return number(f + 0)
	}
	if len(o.Values) > 0 && (o.Type == EnumType || o.Type == ChoiceType) {
		return rapid.SampledFrom(o.Values).Draw(t, "value")
	}
	if o.Type != NumberType && o.Type != BoolType && rapid.Bool().Draw(t, "none") {
		return "none"
	}
	switch o.Type {
	case BoolType:
		return rapid.SampledFrom([]string{"true", "false"}).Draw(t, "value")
	case PairType:
		a, b := x("low"), x("high")
		f, _ := parseNumber(a)
		if g, _ := parseNumber(b); f > g {
			a, b = b, a
		}
		return a + "," + b
	case SumType:
		sum, err := rl.ParseDPOSum(x("weight") + "*sigmoid+" + x("weight") + "*ipo_norm")
		require.NoError(t, err)
		return sum.String()
	case AdaptiveType:
		return x("target") + "," + x("horizon") + "," + x("n_steps")
	}
	return x("value")
}

func TestParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := rapid.SampledFrom(Options()).Draw(t, "option")
		text := draw(t, o)
		if rapid.IntRange(0, 9).Draw(t, "state") == 0 {
			text = rapid.SampledFrom([]string{"?", "–"}).Draw(t, "text")
		}
		v, err := Parse(o.Name, text)
		require.NoError(t, err)
		require.Equal(t, text, v.String())
		again, err := Parse(o.Name, v.String())
		require.NoError(t, err)
		require.True(t, v == again)
		require.Equal(t, text != "?" && text != "–", v.Known())
	})
}

// A number that was solved for and is not finite is written, and is no value.
func TestNumbersThatAreNotFiniteAreNoValues(t *testing.T) {
	for _, x := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		_, err := Parse("kl.beta", NumberValue(x).String())
		require.Error(t, err)
	}
}

func TestParseRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"adv.ddof":          "2",
		"whiten.ddof":       "nan",
		"kl.kind":           "K3",
		"kl.beta":           "Inf",
		"kl.clamp_in":       "0",
		"kl.clamp_out":      "-10",
		"clip.low":          "0x1p-2",
		"clip.high":         "1_0",
		"clip.dual":         "1",
		"gae.gamma":         "1.01",
		"gae.lambda":        "none",
		"logp.temperature":  "0",
		"mean.eps":          "-1e-8",
		"reward.clip_range": "10,-10",
		"kl.adaptive":       "6,1e4",
		"whiten.remask":     "yes",
		"loss.kind":         "",
		"proj.passes":       "3",
		"optim.lr":          "1e999",
	} {
		_, err := Parse(name, text)
		require.Error(t, err, "%s=%s", name, text)
		o, _ := Find(name)
		require.Contains(t, err.Error(), name)
		require.Contains(t, err.Error(), o.Legal(), "the legal values are named")
	}
	_, err := Parse("adv.ddf", "1")
	require.ErrorContains(t, err, `did you mean "adv.ddof"?`)
	_, err = Parse("clip.hihg", "0.2")
	require.ErrorContains(t, err, `did you mean "clip.high"?`)
	_, err = Parse(strings.Repeat("k", 1<<20), "1")
	require.Less(t, len(err.Error()), 300)
}

func TestValueStates(t *testing.T) {
	unknown, err := Parse("adv.ddof", "?")
	require.NoError(t, err)
	off, err := Parse("clip.dual", "none")
	require.NoError(t, err)
	inapplicable, err := Parse("clip.dual", "-")
	require.NoError(t, err)
	require.Equal(t, Value{}, unknown)
	require.Equal(t, []Kind{Unknown, None, NotApplicable}, []Kind{unknown.Kind(), off.Kind(), inapplicable.Kind()})
	require.NotEqual(t, unknown, inapplicable)
	require.Equal(t, []bool{false, true, false}, []bool{unknown.Known(), off.Known(), inapplicable.Known()})

	zero, _ := Parse("kl.beta", "-0")
	require.Equal(t, "0", zero.String())
	pair, _ := Parse("reward.clip_range", "-10, 10")
	require.Equal(t, []float64{-10, 10}, pair.Nums())
	enum, _ := Parse("whiten.scope", "none")
	require.Equal(t, "none", enum.Text(), "none of an enumeration is one of its values")
	on, _ := Parse("whiten.remask", "true")
	require.True(t, on.Bool())
	for _, x := range []float64{0.05, 0.5, 1, 10, 512, 1e4, 1e-3, 1e-8, 1.05, -1} {
		require.Equal(t, map[float64]string{0.05: "0.05", 0.5: "0.5", 1: "1", 10: "10", 512: "512", 1e4: "1e4", 1e-3: "1e-3", 1e-8: "1e-8", 1.05: "1.05", -1: "-1"}[x], number(x))
	}
	require.PanicsWithValue(t, "convention: value is of another kind", func() { off.Num() })
	require.PanicsWithValue(t, "convention: value is of another kind", func() { enum.Bool() })
}

// What nobody had said is no override, nor is what both say.
func TestOverListsWhatChanged(t *testing.T) {
	value := func(option, text string) Value {
		v, err := Parse(option, text)
		require.NoError(t, err)
		return v
	}
	weak := (&Set{}).With("kl.beta", value("kl.beta", "0.1"), "profile").With("kl.kind", Value{}, "profile").With("gae.gamma", value("gae.gamma", "1"), "profile")
	strong := (&Set{}).With("kl.beta", value("kl.beta", "0.2"), "file").With("kl.kind", value("kl.kind", "k3"), "file").
		With("gae.gamma", value("gae.gamma", "1"), "file").With("gae.lambda", value("gae.lambda", "0.9"), "file")
	both, changed := weak.Over(strong)
	require.Equal(t, []Override{{"kl.beta", value("kl.beta", "0.1"), value("kl.beta", "0.2"), "profile", "file"}}, changed)
	require.Equal(t, sorted("kl.beta=0.2 kl.kind=k3 gae.gamma=1 gae.lambda=0.9"), sorted(valuesOf(both)))
}

// LOW = HIGH holds a number in place, and is legal.
func TestAPairMayBeOnePoint(t *testing.T) {
	v, err := Parse("reward.clip_range", "2,2")
	require.NoError(t, err)
	require.Equal(t, "2,2", v.String())
}

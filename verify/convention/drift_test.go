package convention

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/rl"
)

// enumeration is one of package rl: its Parse, and all its values as text, found by counting up until String gives up.
type enumeration struct {
	parse  func(string) (fmt.Stringer, error)
	values []string
}

func of[T interface {
	~int
	fmt.Stringer
}](parse func(string) (T, error)) enumeration {
	e := enumeration{parse: func(s string) (fmt.Stringer, error) { return parse(s) }}
	for i := T(0); i.String() != "invalid"; i++ {
		e.values = append(e.values, i.String())
	}
	return e
}

// implemented are the options that package rl reads by name.
var implemented = map[string]enumeration{
	"mean.empty": of(rl.ParseEmptyRule), "mean.nan_outside": of(rl.ParseOutsideRule), "whiten.single": of(rl.ParseSingleRule),
	"whiten.scope": of(rl.ParseScope), "whiten.eps_place": of(rl.ParseEpsPlace), "whiten.shift_mean": of(rl.ParseShiftMean),
	"whiten.mask": of(rl.ParseWhitenMask), "score.index": of(rl.ParseScoreIndex), "eos.rule": of(rl.ParseEOSRule),
	"gae.hole": of(rl.ParseHole), "gae.value_mask": of(rl.ParseValueMask), "gae.lambda_policy": of(rl.ParseLambdaPolicy),
	"gae.truncated_bootstrap": of(rl.ParseBootstrap), "returns.remask": of(rl.ParseReturnsMask),
	"adv.center": of(rl.ParseCenter), "adv.scale": of(rl.ParseScale), "adv.zero_std": of(rl.ParseZeroStd),
	"adv.singleton": of(rl.ParseSingleton), "adv.multi": of(rl.ParseMultiReward), "rfpp.mode": of(rl.ParseReinforceMode),
	"kl.kind": of(rl.ParseKLKind), "kl.index_base": of(rl.ParseKLIndexBase), "kl.grad": of(rl.ParseKLGrad),
	"ratio.level": of(rl.ParseRatioLevel), "tis.level": of(rl.ParseTISLevel), "tis.rule": of(rl.ParseTISRule), "tis.gate": of(rl.ParseTISGate),
	"loss.kind": of(rl.ParseLossKind), "metric.clip_frac": of(rl.ParseClipFracKind), "entropy.logits": of(rl.ParseEntropyLogits),
	"agg.kind": of(rl.ParseAggKind), "agg.denominator": of(rl.ParseAggDenominator), "agg.empty_rows": of(rl.ParseAggEmptyRows),
	"dpo.loss": of(rl.ParseDPOKind), "align": of(rl.ParseAlign),
}

// unnamed are the enumerated options whose values no Parse of package rl reads: they choose between its functions and
// arguments, or belong to another package.
var unnamed = []string{"mask.tokens", "rewards.whiten", "reward.clip", "eos.test", "adv.kind", "adv.std_of", "adv.group_by", "kl.clamp_in_side",
	"kl.reduce", "kl.place", "kl.agg", "kl.under_is_weight", "ratio.old", "value.mask", "value.agg", "entropy.agg", "logp.source", "logp.dtype", "dropout", "optim.kind", "optim.schedule",
	"optim.masters", "lora.scaling", "lora.bias_merge", "int8.const", "proj.against", "proj.target"}

// drift returns what the values of an option and those of package rl have not in common.
func drift(o *Option, e enumeration) error {
	for _, v := range o.Values {
		got, err := e.parse(v)
		if err != nil {
			return fmt.Errorf("%s: %q is a value that rl has not: %w", o.Name, v, err)
		}
		if got.String() != v {
			return fmt.Errorf("%s: rl reads %q as %v", o.Name, v, got)
		}
	}
	for _, v := range e.values {
		if _, err := o.Parse(v); err != nil {
			return fmt.Errorf("rl has a value that the option has not: %w", err)
		}
	}
	return nil
}

func TestEnumerationsAreThoseOfTheReference(t *testing.T) {
	var without []string
	seen := 0
	for _, o := range Options() {
		e, ok := implemented[o.Name]
		switch {
		case ok:
			require.NotEmpty(t, e.values, o.Name)
			require.NoError(t, drift(o, e))
			seen++
		case o.Type == EnumType:
			without = append(without, o.Name)
		}
	}
	require.Equal(t, len(implemented), seen)
	require.Equal(t, unnamed, without)
}

// An enumeration that is added to package rl must become an option, or stand here with the reason.
func TestEveryParseOfTheReferenceIsCompared(t *testing.T) {
	own, err := os.ReadFile("drift_test.go")
	require.NoError(t, err)
	files, err := filepath.Glob("../../reference/rl/*.go")
	require.NoError(t, err)
	var missing []string
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`(?m)^func (Parse\w+)\(`).FindAllStringSubmatch(string(text), -1) {
			found++
			if !strings.Contains(string(own), "of(rl."+m[1]+")") {
				missing = append(missing, m[1])
			}
		}
	}
	require.Equal(t, len(implemented)+len(missing), found)
	// Settings of the trainers of systems B and D: adv.scale says the one here, and the other is of no policy loss.
	require.ElementsMatch(t, []string{"ParseAdvScope", "ParseEFEKind"}, missing)
}

// A value too many, too few or with another name is seen.
func TestDriftIsSeen(t *testing.T) {
	o, err := Find("gae.hole")
	require.NoError(t, err)
	for name, values := range map[string][]string{
		"more":    append([]string{"skip"}, o.Values...),
		"fewer":   o.Values[1:],
		"renamed": append([]string{"nothing"}, o.Values[1:]...),
	} {
		bad := *o
		bad.Values = values
		require.Error(t, drift(&bad, implemented["gae.hole"]), name)
	}
}

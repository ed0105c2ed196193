package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/dump"
)

const releasesDir = "../../golden/releases"

// judgedUnder judges a run of golden/releases under a profile, or under that of the release that its files name.
func judgedUnder(t *testing.T, run, profile string) *dump.Report {
	t.Helper()
	files, err := dumpfile.Open(t.Context(), []string{filepath.Join(releasesDir, run)})
	require.NoError(t, err)
	report, err := dump.Judge(t.Context(), files, dump.Options{Profile: profile})
	require.NoError(t, err)
	return report
}

// Every former profile is what its own release computes: chosen by the version that the files name, or by --profile, all of it passes,
// and nothing is left open.
func TestProfilesOfFormerReleases(t *testing.T) {
	var pinned []string
	folders, err := os.ReadDir(releasesDir)
	require.NoError(t, err)
	for _, f := range folders {
		if !f.IsDir() {
			continue
		}
		pinned = append(pinned, f.Name())
		runs, err := os.ReadDir(filepath.Join(releasesDir, f.Name()))
		require.NoError(t, err)
		for _, run := range runs {
			path := filepath.Join(f.Name(), run.Name())
			for _, profile := range []string{"", f.Name()} {
				report := judgedUnder(t, path, profile)
				require.True(t, slices.ContainsFunc(report.Lines, func(l string) bool {
					return l == "profile: "+f.Name() || strings.HasPrefix(l, "profile: "+f.Name()+" ")
				}), "%s: %v", path, report.Lines)
				passed := 0
				for _, r := range report.Results {
					require.Contains(t, []check.Verdict{check.Pass, check.NotSeen, check.Skip}, r.Verdict, "%s: %s %s", path, r.Check, r.Reason)
					if r.Verdict == check.Pass {
						passed++
					}
				}
				require.Greater(t, passed, 4, path)
			}
		}
	}
	for _, p := range convention.AllProfiles() {
		require.Equal(t, p.Former, slices.Contains(pinned, p.Name), "%s has numbers of its release", p.Name)
	}
}

// What changed: a run of one release, judged under the profile of another, does not pass, and the option or the bug that is the
// difference is named.
func TestProfilesTellReleasesApart(t *testing.T) {
	for i, c := range []struct{ run, under, names string }{
		{"trl-grpo@0.14/logp", "trl-grpo@0.16", "logp.temperature"},
		{"trl-grpo@0.14/loss", "trl-grpo@0.16", "agg.kind"},
		{"trl-grpo@0.14/loss", "trl-grpo@1.16", "kl.beta agg.kind"},
		{"trl-grpo@0.16/loss", "trl-grpo@0.22", "kl.beta AGG-LOCAL-DENOMINATOR"},
		{"trl-grpo@0.16/kl", "trl-grpo@0.22", "AGG-LOCAL-DENOMINATOR"},
		{"trl-grpo@0.22/loss", "trl-grpo@0.16", "agg.denominator agg.div_ga"},
		{"trl-grpo@0.27/engine", "trl-grpo@0.22", "tis.level tis.rule tis.high"},
		{"trl-grpo@0.27/kl", "trl-grpo@1.16", "kl.grad"},
		{"trl-grpo@1.0/kl", "trl-grpo@1.16", "kl.grad"},
		{"verl-grpo@0.4/far", "verl-grpo@0.4.1", "ratio.log_clamp"},
		{"verl-grpo@0.4/far", "verl-grpo@0.9", "ratio.log_clamp"},
		{"verl-ppo@0.4/gae", "verl-ppo@0.6", "gae.hole"},
		{"verl-ppo@0.4/value", "verl-ppo@0.4.1", "value.factor"},
		{"verl-ppo@0.4.1/gae", "verl-ppo@0.6", "gae.hole"},
		{"verl-ppo@0.4.1/gae", "verl-ppo@0.9", "gae.hole"},
		{"verl-ppo@0.6/gae", "verl-ppo@0.4.1", "gae.hole"},
		{"openrlhf-group@0.6/loss", "openrlhf-group@0.10", "agg.kind"},
		{"openrlhf-group@0.6/far", "openrlhf-group@0.10", "kl.clamp_out agg.kind"},
		{"openrlhf-group@0.6/loss", "openrlhf-group@0.11", "agg.kind"},
		{"openrlhf-group@0.10/loss", "openrlhf-group@0.10.3", "agg.denominator"},
		{"openrlhf-group@0.10/loss", "openrlhf-group@0.11", "agg.denominator"},
		{"openrlhf-group@0.10/far", "openrlhf-group@0.6", "kl.clamp_out agg.kind"},
		{"openrlhf-ppo@0.6/value", "openrlhf-ppo@0.10", "agg.kind"},
		{"openrlhf-ppo@0.6/value", "openrlhf-ppo@0.11", "agg.kind"},
		{"openrlhf-ppo@0.10/value", "openrlhf-ppo@0.10.3", "agg.denominator"},
	} {
		if i%cases.Every != 0 {
			continue
		}
		var named []string
		wrong := 0
		for _, r := range judgedUnder(t, c.run, c.under).Results {
			if r.Verdict != check.Fail && r.Verdict != check.Convention {
				continue
			}
			wrong++
			for _, x := range r.Explanations {
				named = append(named, x.Fault)
				for _, o := range x.Options {
					named = append(named, o.Option)
				}
			}
		}
		require.Positive(t, wrong, "%s under %s", c.run, c.under)
		require.Subset(t, named, strings.Fields(c.names), "%s under %s", c.run, c.under)
	}
}

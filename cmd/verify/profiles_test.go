package main

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// profiles runs the command in this process.
func profiles(args ...string) (stdout, stderr string, err error) {
	cmd := newProfiles()
	var out, errs bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&errs)
	cmd.SetArgs(append([]string{}, args...)) // cobra takes nil for the arguments of the process
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	err = cmd.Execute()
	return out.String(), errs.String(), err
}

func TestProfilesList(t *testing.T) {
	out, errs, err := profiles()
	require.NoError(t, err)
	require.Empty(t, errs)
	for _, p := range convention.AllProfiles() {
		require.Regexp(t, regexp.QuoteMeta(p.Name)+` +`+regexp.QuoteMeta(p.Framework)+` +`+regexp.QuoteMeta(p.Release), out)
	}
}

func TestProfilesOne(t *testing.T) {
	out, errs, err := profiles("trl-grpo@1.16")
	require.NoError(t, err)
	require.Empty(t, errs)
	require.Contains(t, out, "trl-grpo@1.16  (TRL 1.16.0, grpo)\nbased on trl-grpo@1.9\n  - run: ")
	require.Regexp(t, `(?m)^ *adv\.eps +1e-4 +executed, trl-grpo@1\.16 +added to σ`, out)
	require.Regexp(t, `(?m)^ *clip\.low +0\.2 +read, trl-grpo@1\.9 +`, out)
	require.Regexp(t, `(?m)^ *ratio\.old +\? \(stored or stopgrad_new\) `, out)
	require.Regexp(t, `(?m)^ *gae\.gamma +– `, out)
	for _, name := range convention.Names() {
		require.Contains(t, out, name+" ")
	}
}

func TestProfilesTwo(t *testing.T) {
	out, _, err := profiles("verl-grpo@0.8", "verl-grpo@0.9")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^ *option +verl-grpo@0\.8 +verl-grpo@0\.9 `, out)
	require.Regexp(t, `(?m)^ *agg\.div_batch +false +true `, out)
	require.NotContains(t, out, "adv.eps")
	out, _, err = profiles("trl-ppo@1.9", "trl-ppo@1.12")
	require.NoError(t, err)
	require.Equal(t, "trl-ppo@1.9 and trl-ppo@1.12 have the same value of every option.\n", out)
}

func TestProfilesJSON(t *testing.T) {
	var got struct {
		SchemaVersion int `json:"schema_version"`
		Options       []optionJSON
		Profiles      []profileJSON
		Differences   *[]string
	}
	decode := func(args ...string) {
		t.Helper()
		got.Options, got.Profiles, got.Differences = nil, nil, nil
		out, _, err := profiles(append(args, "--format", "json")...)
		require.NoError(t, err)
		d := json.NewDecoder(strings.NewReader(out))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&got))
		require.Equal(t, 1, got.SchemaVersion)
		require.Len(t, got.Options, len(convention.Options()))
	}
	decode()
	require.Len(t, got.Profiles, len(convention.AllProfiles()))
	require.Nil(t, got.Differences)
	for i, p := range convention.AllProfiles() {
		require.Equal(t, p.Name, got.Profiles[i].Name)
		for _, s := range p.Settings() {
			j := got.Profiles[i].Settings[s.Option.Name]
			text := map[string]string{"unknown": "?", "not_applicable": "–"}[j.State]
			if j.State == "known" {
				text = *j.Value
			} else {
				require.Nil(t, j.Value)
			}
			v, err := convention.Parse(s.Option.Name, text)
			require.NoError(t, err)
			require.Equal(t, s.Value, v)
			require.Len(t, j.Among, len(s.Among))
		}
	}
	decode("verl-ppo@0.9")
	require.Len(t, got.Profiles, 1)
	decode("verl-ppo@0.8", "verl-ppo@0.9")
	require.Len(t, got.Profiles, 2)
	require.Equal(t, []string{"ratio.len_eps", "agg.div_batch", "agg.div_ga"}, *got.Differences)
	decode("trl-ppo@1.9", "trl-ppo@1.12")
	require.Equal(t, []string{}, *got.Differences)
}

func TestProfilesErrors(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"trl-gppo@1.16"}, `did you mean "trl-grpo@1.16"?`},
		{[]string{"nemo-ppo@0"}, "there is nemo-ppo@7ea279a"},
		{[]string{"a", "b", "c"}, "at most two names"},
		{[]string{"--format", "xml"}, "want human or json"},
	} {
		out, _, err := profiles(c.args...)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, check.ExitUsage, exitCode(err))
		require.Empty(t, out)
	}
	out, errs, err := profiles("trl-grpo@1.16.3")
	require.NoError(t, err)
	require.Contains(t, out, "trl-grpo@1.16  (")
	require.Equal(t, "verify: warning: there is no profile trl-grpo@1.16.3; taking trl-grpo@1.16, the nearest older one\n", errs)
}

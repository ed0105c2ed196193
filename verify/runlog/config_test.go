package runlog_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/runlog"
)

// The options of a run are the same however its configuration is written: lines, YAML with lists in either style, JSON, W&B's config.yaml.
func TestConfigForms(t *testing.T) {
	for _, text := range []string{
		"reward_weights=[1.0, 0.5]\nactor.clip=0.2\nname=run\nflag=true",
		"reward_weights: [1.0, 0.5]\nactor:\n  clip: 0.2  # of the ratio\nname: 'run'\nflag: true\n",
		"reward_weights:\n- 1.0\n- 0.5\nactor:\n  clip: 0.2\nname: run\nflag: true\n",
		"reward_weights:\n    - 1.0\n    - 0.5\nflag: true\nactor:\n    clip: 0.2\nname: run",
		`{"reward_weights": [1.0, 0.5], "actor": {"clip": 0.2}, "name": "run", "flag": true}`,
		"{\n \"reward_weights\": [\n  1.0,\n  0.5\n ],\n \"actor\": {\n  \"clip\": 0.2\n },\n \"name\": \"run\",\n \"flag\": true\n}\n",
		"reward_weights:\n  desc: null\n  value:\n  - 1.0\n  - 0.5\nactor:\n  value:\n    clip: 0.2\nactor.clip:\n  value: 0.2\nname:\n  value: run\nflag:\n  value: true\n",
	} {
		config, lines := runlog.ParseConfig(text)
		for k, v := range map[string]string{"reward_weights": "[1.0, 0.5]", "actor.clip": "0.2", "name": "run", "flag": "true"} {
			require.Equal(t, v, config[k], "%s of %s", k, text)
			require.Positive(t, lines[k], "%s of %s", k, text)
		}
	}
	for _, text := range []string{"", "{", "{]", "- a\n- b: c", "[1,2]", "{}\n{}", "-", ":", "=", "a:\n- ", "\x00\xff"} {
		runlog.ParseConfig(text)
	}
	_, lines := runlog.ParseConfig("{\n \"a\": 1,\n \"b\": {\"c\": 2}}")
	require.Equal(t, map[string]int{"a": 2, "b.c": 3}, lines)
}

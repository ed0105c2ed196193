//go:build slow

package main

import (
	"path/filepath"
	"testing"
)

// TestLockstepOfTrainers runs every trainer with an adapter for twenty steps in lockstep.
func TestLockstepOfTrainers(t *testing.T) {
	steps := map[string]string{"ppo": "training.total_ppo_steps=20", "sft": "sft.steps=20", "grpo_causal": "max_steps=20", "shielded": "steps=20"}
	for name, args := range accelerated {
		t.Run(name, func(t *testing.T) {
			lockstep(t, args(filepath.Join(t.TempDir(), "run"), "--lockstep", steps[name]))
		})
	}
}

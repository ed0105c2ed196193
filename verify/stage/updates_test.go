package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

func TestUpdates(t *testing.T) {
	for _, c := range []struct {
		facts map[string]float64
		want  float64
	}{
		{nil, 1},
		{map[string]float64{"num_mini_batches": 4}, 4},
		{map[string]float64{"steps_per_generation": 8, "gradient_accumulation_steps": 2}, 4},
		{map[string]float64{"steps_per_generation": 2, "gradient_accumulation_steps": 2}, 1},
		{map[string]float64{"steps_per_generation": 3, "gradient_accumulation_steps": 2}, 1.5},
		{map[string]float64{"steps_per_generation": 3}, 3},
		{map[string]float64{"gradient_accumulation_steps": 4}, 1},
		{map[string]float64{"rollout_batch_size": 1024, "train_batch_size": 128}, 8},
		{map[string]float64{"rollout_batch_size": 128, "num_generations": 8, "train_batch_size": 256}, 4},
		{map[string]float64{"rollout_batch_size": 16, "num_generations": 1, "train_batch_size": 256}, 1},
		{map[string]float64{"train_batch_size": 1024, "ppo_mini_batch_size": 256, "num_generations": 5}, 4},
		{map[string]float64{"train_batch_size": 1024}, 1},
	} {
		set := &convention.Set{}
		for name, x := range c.facts {
			set = set.WithFact(name, x)
		}
		require.Equal(t, c.want, Updates(set), "%v", c.facts)
		require.Equal(t, 1.0, Updates(AsOneStep(set)), "%v", c.facts)
	}
}

package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// What a loss says of weights that its files do not have is no option of the losses beside it.
func TestUnweighted(t *testing.T) {
	known, found := &convention.Set{}, []stage.Change(nil)
	for option, text := range map[string]string{"tis.level": "seq_sum", "agg.kind": "token"} {
		v, err := convention.Parse(option, text)
		require.NoError(t, err)
		known, found = known.With(option, v, "aggregate/pg_loss"), append(found, stage.Change{Option: option, To: v})
	}
	b := &dump.Batch{Tensors: map[string]*dump.Tensor{}}
	set, left := unweighted(b, known, found)
	require.Len(t, left, 1)
	require.Equal(t, "agg.kind", left[0].Option)
	require.Equal(t, convention.Unknown, set.Value("tis.level").Kind())
	require.Equal(t, "token", set.Value("agg.kind").String())
	b.Tensors["is_weights"] = &dump.Tensor{}
	set, left = unweighted(b, known, found)
	require.Len(t, left, 2)
	require.Equal(t, "seq_sum", set.Value("tis.level").String())
}

// The first of each list comes before the second of any.
func TestDealt(t *testing.T) {
	require.Equal(t, []int{1, 4, 5, 2, 6, 3}, dealt([][]int{{1, 2, 3}, {}, {4}, {5, 6}}))
	require.Empty(t, dealt[int](nil))
}

// Sums of squared probabilities are there for one estimator, which takes the weights and the groups that were dumped, and none that were not.
func TestUnderTensors(t *testing.T) {
	b := &dump.Batch{Tensors: map[string]*dump.Tensor{}}
	require.Empty(t, underTensors(b, &convention.Set{}))
	b.Tensors["sum_pi_squared"] = &dump.Tensor{}
	sets := underTensors(b, &convention.Set{})
	require.Len(t, sets, 1)
	require.Equal(t, "optimal_token_baseline", sets[0].Value("adv.kind").String())
	require.Equal(t, convention.Unknown, sets[0].Value("tis.level").Kind())
	b.Tensors["is_weights"], b.Tensors["group_id"] = &dump.Tensor{}, &dump.Tensor{}
	require.Equal(t, "token", underTensors(b, &convention.Set{})[0].Value("tis.level").String())
	require.Equal(t, "uid", underTensors(b, &convention.Set{})[0].Value("adv.group_by").String())
}

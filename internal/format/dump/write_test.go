package dump

import (
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// TestWriteMetadata pins the text.
func TestWriteMetadata(t *testing.T) {
	yes := true
	path := join(t.TempDir(), "a.safetensors")
	require.NoError(t, WriteFile(path, Meta{
		Framework: "trl", Step: 3, WorldSize: 2, Rank: 1, Align: AlignShifted, TokenLossIncludesKL: &yes, ScoresShaped: &yes, DLogpScale: 0.5, Lossy: []string{"kl"},
		Options: []Option{{"z", 1e300}, {"a", []any{1.0, nil, map[string]any{"y": 2, "x": "<é>"}}}},
		Scalars: []Scalar{{"loss", math.NaN()}, {"kl", math.Inf(1)}, {"lr", 1e-5}, {"n", 1e6}},
	}))
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, `{"schema":2,"framework":"trl","step":3,"rank":1,"world_size":2,"micro_batch":0,"align":"shifted",`+
		`"token_loss_includes_kl":true,"scores_shaped":true,"lossy":["kl"],"dlogp_scale":0.5,"options":{"z":1e+300,"a":[1,null,{"x":"\u003cé\u003e","y":2}]},`+
		`"scalars":{"loss":null,"kl":null,"lr":1e-05,"n":1000000}}`, f.Metadata[metadataKey])
}

// TestWriteRefused demands an error, and no file, for what a file cannot hold.
func TestWriteRefused(t *testing.T) {
	for name, c := range map[string]struct {
		m    Meta
		t    *Tensor
		want string
	}{
		"fraction as int32": {t: tensor("a", format.I32, []int{1}, 1.5), want: `tensor "a": element 0 is 1.5, which int32 cannot hold`},
		"beyond int32":      {t: tensor("a", format.I32, []int{2}, 0, 1<<31), want: "element 1 is 2.147483648e+09, which int32 cannot hold"},
		"NaN as int32":      {t: tensor("a", format.I32, []int{1}, math.NaN()), want: "element 0 is NaN"},
		"negative as uint8": {t: tensor("a", format.U8, []int{1}, -1), want: "element 0 is -1, which uint8 cannot hold"},
		"2 as bool":         {t: tensor("a", format.Bool, []int{1}, 2), want: "element 0 is 2, which bool cannot hold"},
		"no type":           {t: tensor("a", format.Unknown, []int{1}, 2), want: "element type"},
		"shape":             {t: tensor("a", format.F32, []int{3}, 2), want: "1 elements in Data, shape [3] needs 3"},
		"infinite option":   {m: Meta{Options: []Option{{"beta", math.Inf(1)}}}, t: tensor("a", format.F32, nil, 2), want: "option beta: +Inf has no JSON form"},
		"nested NaN":        {m: Meta{Options: []Option{{"w", []any{math.NaN()}}}}, t: tensor("a", format.F32, nil, 2), want: "option w: NaN has no JSON form"},
		"foreign option":    {m: Meta{Options: []Option{{"w", map[string]any{"x": int8(1)}}}}, t: tensor("a", format.F32, nil, 2), want: "a value of type int8 has no JSON form"},
		"infinite fill":     {m: Meta{MaskedFill: new(math.Inf(-1))}, t: tensor("a", format.F32, nil, 2), want: "key masked_fill: -Inf has no JSON form"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.ErrorContains(t, WriteFile(join(dir, "a.safetensors"), c.m, c.t), c.want)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Empty(t, files)
		})
	}
}

package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// wideModel writes a folder whose tensors lie in several pieces: floats with NaN and infinities in three of them, zeros, and int8
// codes whose scales say which magnitude a row must reach.
func wideModel(t *testing.T, dir string) {
	t.Helper()
	const n = 900_000
	floats := make([]byte, 4*n)
	for i := range n {
		binary.LittleEndian.PutUint32(floats[4*i:], math.Float32bits(1+float32(i%7)))
	}
	for i, x := range map[int]float64{3: math.NaN(), 400_000: math.Inf(-1), 899_999: math.NaN(), 400_001: math.Inf(1)} {
		binary.LittleEndian.PutUint32(floats[4*i:], math.Float32bits(float32(x)))
	}
	codes := make([]byte, 1000*2500)
	for i := range codes {
		codes[i] = byte(i % 100)
	}
	codes[1_048_577] = 0x81 // −127
	head := fmt.Sprintf(`{"a.weight":{"dtype":"F32","shape":[900,1000],"data_offsets":[0,%d]},"b.weight":{"dtype":"F32","shape":[900,1000],"data_offsets":[%d,%d]},"c.weight":{"dtype":"I8","shape":[1000,2500],"data_offsets":[%d,%d]}}`,
		4*n, 4*n, 8*n, 8*n, 8*n+len(codes))
	file := append(binary.LittleEndian.AppendUint64(nil, uint64(len(head))), head...)
	file = append(append(append(file, floats...), make([]byte, 4*n)...), codes...)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors"), file, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"model_type":"other"}`), 0o644))
}

// The report of shards of a checkpoint is that of one process, byte for byte, whatever it finds.
func TestCheckpointShardsMerge(t *testing.T) {
	dir := goldenFolders(t)
	wideModel(t, filepath.Join(dir, "wide"))
	for k, args := range [][]string{
		{"wide"}, {"peft_gptj", "--base", "hf_gptj", "--merged", "merged_gptj"}, {"hf_llama_int8", "--base", "hf_llama_bf16"}, {"peft_gptj_init"}, {"hf_gptj_sharded"},
		{"trl_sft_lora", "--against", "trl_sft_lora/checkpoint-2"},
	} {
		args = append([]string{"checkpoint"}, args...)
		want, _, code := verify(t, dir, append(args, "--format", "json")...)
		for _, n := range shardCounts() {
			if n > 2 && k > 0 {
				continue
			}
			merge := []string{"merge", "--format", "json"}
			for i := range n {
				part := fmt.Sprintf("%d-%d-of-%d.json", k, i, n)
				_, stderr, code := verify(t, dir, append(args, "--shard", fmt.Sprintf("%d/%d", i, n), "-o", part)...)
				require.Zero(t, code, stderr)
				merge = append(merge, part)
			}
			got, stderr, merged := verify(t, dir, merge...)
			require.Equal(t, code, merged, "%v: %s", args, stderr)
			require.Equal(t, withoutRun(t, want), withoutRun(t, got), "%v, %d shards", args, n)
		}
	}
	_, stderr, code := verify(t, dir, "merge", "0-0-of-2.json")
	require.Equal(t, 2, code, stderr)
	require.Contains(t, stderr, "shard 1 of 2 is missing")
	// The folder changes between the shards and the merge.
	require.NoError(t, os.WriteFile(filepath.Join(dir, "wide", "config.json"), []byte(`{"model_type":"another"}`), 0o644))
	_, stderr, code = verify(t, dir, "merge", "0-0-of-2.json", "0-1-of-2.json")
	require.Equal(t, 4, code, stderr)
	require.Contains(t, stderr, "has changed since")
}

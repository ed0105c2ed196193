package checkpoint

import (
	"math/rand/v2"
	"slices"
	"testing"

	"plumbline/verify/check"
	"plumbline/verify/checkpoint"
)

func random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

// fuzzed are the files whose content the fuzzer chooses, in a folder that is sound without it.
var fuzzed = []struct {
	name  string
	scene func(r *rand.Rand) *scene
}{
	{"adapter_config.json", aloneScene}, {adapterFile, aloneScene}, {indexFile, shardedScene}, {"config.json", wholeScene}, {"model.safetensors", int8Scene}, {"tokenizer.json", wholeScene},
	{"step_2/state.json", runScene}, {"step_2/MANIFEST.json", runScene}, {"effective_config.yaml", runScene}, {"latest", runScene}, {"checkpoint-3/optimizer.pt", trainerScene},
	{"checkpoint-3/trainer_state.json", trainerScene}, {"pytorch_model.bin", trlScene},
}

// FuzzFolder judges a folder of which one file holds arbitrary bytes: no panic, and nothing that is not a verdict.
func FuzzFolder(f *testing.F) {
	for i, x := range fuzzed {
		s := x.scene(random(uint64(i)))
		f.Add(uint8(i), s.dir.Files[x.name])
		f.Add(uint8(i), []byte(`{"weight_map": {"a": "b"}, "r": 0, "files": {}, "model": {"vocab": {"a": 1}}}`))
	}
	var scenes []*scene
	for i, x := range fuzzed {
		scenes = append(scenes, x.scene(random(uint64(i))))
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		i := int(which) % len(fuzzed)
		s := *scenes[i]
		s.dir = memory(s.dir.Name, s.dir.Files, map[string][]byte{fuzzed[i].name: text})
		in := s.input()
		results, err := checkpoint.Suite.Run(in, check.Selection{})
		if err != nil {
			t.Fatal(err)
		}
		refused := in.Refused() != nil
		told := slices.ContainsFunc(results, func(r check.Result) bool { return r.Verdict == check.Fail })
		if refused && !told {
			t.Fatal("a file was refused and no check fails")
		}
	})
}

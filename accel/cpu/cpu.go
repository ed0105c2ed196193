// Package cpu says what the processor has and shares work among its cores.
package cpu

import (
	"sync"

	"golang.org/x/sys/cpu"
)

// Feature is a set of instructions that a kernel needs, together with the registers the operating system saves for it.
type Feature int

const (
	None       Feature = iota
	AVX2               // with FMA
	AVX512             // F, BW, DQ and VL
	AVX512VNNI         // with AVX512
	AVX512BF16         // with AVX512
	AMX                // tiles with int8 and bfloat16, the permission to use them, and all of the above, which every processor with tiles has
)

var names = [...]string{"none", "AVX2 and FMA", "AVX512 F, BW, DQ and VL", "AVX512-VNNI", "AVX512-BF16", "AMX tiles"}

func (f Feature) String() string { return names[f] }

// Missing returns why a kernel that needs f cannot run in this process, "" if it can.
func Missing(f Feature) string {
	if has(f) {
		if f == AMX {
			return amxPermission()
		}
		return ""
	}
	return "the processor, or the operating system, has no " + f.String()
}

func has(f Feature) bool {
	x := &cpu.X86
	avx512 := x.HasAVX512F && x.HasAVX512BW && x.HasAVX512DQ && x.HasAVX512VL
	switch f {
	case None:
		return true
	case AVX2:
		return x.HasAVX2 && x.HasFMA
	case AVX512:
		return avx512
	case AVX512VNNI:
		return avx512 && x.HasAVX512VNNI
	case AVX512BF16:
		return avx512 && x.HasAVX512BF16
	case AMX:
		return avx512 && x.HasAVX512VNNI && x.HasAVX512BF16 && x.HasAMXTile && x.HasAMXInt8 && x.HasAMXBF16
	}
	panic("cpu: unknown feature")
}

// Features returns what this process can use, in words.
func Features() []string {
	var all []string
	for f := AVX2; f <= AMX; f++ {
		if Missing(f) == "" {
			all = append(all, f.String())
		}
	}
	return all
}

// amxPermission asks the operating system once for the tiles; it returns why it refuses, "" if it grants them.
var amxPermission = sync.OnceValue(askForTiles)

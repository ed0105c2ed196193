package op

import (
	"math"
	"slices"
)

// Contract is what a backend promises of its arithmetic where a formula leaves it open. A spec takes its bound from it.
type Contract int

const (
	// Processor sums products as a chain of fused multiply-adds and the terms of a row in float64; e^x is good to 2⁻²⁶.
	Processor Contract = iota
	// Device sums in float32 in any grouping; tensor cores take exact products, and may cut where they align (2u·(K + K/8)·S); e^x is good to
	// 2⁻²² + 4u, ln x to 2⁻²². Products of int8, and of float32 that are not accumulated, have the bits of the processor's.
	Device
	// Tiles is Processor, but for products of bfloat16, whose sums are those of TDPBF16PS (see tileSum).
	Tiles
)

// ContractOf is the contract of a variant on the processor.
func ContractOf(variant string) Contract {
	if variant == "amx" {
		return Tiles
	}
	return Processor
}

// tileSum returns c + Σ a_l·b_l in float32 as TDPBF16PS adds it: for every 32 l in turn the products at even l are a chain of fused multiply-adds
// that starts with 0, those at odd l another; their sum, rounded, is added to c. It holds where nothing is subnormal, which the instruction
// takes for 0 or makes 0.
//
// Source: Intel 64 and IA-32 Architectures Software Developer's Manual, Volume 2, TDPBF16PS; the order within a tile is not written there and was found
// by comparing bits on a Sapphire Rapids processor.
func tileSum(c float32, n int, a, b func(l int) float32) float32 {
	for from := 0; from < n; from += 32 {
		var half [2]float32
		for l := from; l < min(n, from+32); l++ {
			half[l%2] = fma32(a(l), b(l), half[l%2])
		}
		c += half[0] + half[1]
	}
	return c
}

// chainSum returns c + Σ a_l·b_l in float32 as one chain of fused multiply-adds in the order of l.
func chainSum(c float32, n int, a, b func(l int) float32) float32 {
	for l := range n {
		c = fma32(a(l), b(l), c)
	}
	return c
}

// orderOf returns how a backend adds the products of codes with n numbers x, to c: with tiles as a chain too where one is so close to 0 that a
// sum could be subnormal. With codes, numbers of at least 2⁻¹¹⁹ with 8 bits and c of at least 2⁻¹⁰³ with 24 bits have only multiples of 2⁻¹²⁶
// for sums.
func (k Contract) orderOf(n int, x func(l int) float32, c ...float32) func(c float32, n int, a, b func(l int) float32) float32 {
	near := func(v float32, limit float64) bool { return v != 0 && math.Abs(float64(v)) < limit }
	if k != Tiles || slices.ContainsFunc(c, func(v float32) bool { return near(v, 0x1p-103) }) {
		return chainSum
	}
	for l := range n {
		if near(x(l), 0x1p-119) {
			return chainSum
		}
	}
	return tileSum
}

// Terms are what a backend brings along: its contract, and which cases it takes; nil: all.
type Terms struct {
	Contract Contract
	Takes    func(c Case) bool
}

// OnDeviceError is what an implementation panics with that could not run on its device: a driver's error, a finding of the simulator, a
// sentinel that was overwritten. Specs call functions without an error, so that it is a failure of the case.
type OnDeviceError interface {
	error
	OnDevice() string // which device
}

// eExp is the relative error of e^x on a device, and tiny below which its float32 loses digits.
const (
	eExp = 0x1p-22 + 4*u32
	tiny = 0x1p-140
)

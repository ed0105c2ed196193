package op

// Contract is what a backend promises of its arithmetic where a formula leaves it open. A spec takes its bound from it.
type Contract int

const (
	// Processor sums products as a chain of fused multiply-adds and the terms of a row in float64; e^x is good to 2⁻²⁶.
	Processor Contract = iota
	// Device sums in float32 in any grouping; tensor cores take exact products, and may cut where they align (2u·(K + K/8)·S); e^x is good to
	// 2⁻²² + 4u, ln x to 2⁻²². Products of int8, and of float32 that are not accumulated, have the bits of the processor's.
	Device
)

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

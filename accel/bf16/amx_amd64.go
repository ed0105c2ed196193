//go:build !purego

package bf16

import (
	"plumbline/accel/block"
	"plumbline/accel/cpu"
)

func init() {
	forward.AddTested("amx", cpu.AMX, testForwardTiles, forwardAMX)
	backward.AddTested("amx", cpu.AMX, testBackwardTiles, backwardAMX)
}

// forwardAMX works like forwardTwin. One row takes the same instructions as many: it has the same bits alone.
func forwardAMX(y []float32, ldy int, x []float32, ldx int, w []int8, ldw int, scale, bias []float32, m, n, k int) {
	forwardPairs(block.AMXBF16, y, ldy, x, ldx, w, ldw, scale, bias, m, n, k)
}

// backwardAMX works like backwardTwin.
func backwardAMX(dx []float32, lddx int, dy []float32, lddy int, w []int8, ldw int, scale []float32, m, n, k int, accumulate bool) {
	backwardPairs(block.AMXBF16, dx, lddx, dy, lddy, w, ldw, scale, m, n, k, accumulate)
}

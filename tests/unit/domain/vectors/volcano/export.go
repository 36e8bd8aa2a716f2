// Package vgpu, one more file: gives the scheduler's unexported rule and encoding a name, so that main.go can ask them.
// It is laid over the module's own folder by `go build -overlay` (see README.md) and never becomes part of the product.
package vgpu

import v1 "k8s.io/api/core/v1"

// Decide runs the predicate on devices as Allocate does and returns the annotation it would write.
func Decide(pod *v1.Pod, devices *GPUDevices, policy string) (string, float64, error) {
	_, assigned, score, err := checkNodeGPUSharingPredicateAndScore(pod, devices, false, policy)
	return encodePodDevices(assigned), score, err
}

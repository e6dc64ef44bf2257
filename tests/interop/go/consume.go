// A client made from the console's document consumes a group: consume URL GROUP FILTER
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"

	"example.org/consumer/api"
)

func main() {
	group, filter := os.Args[2], os.Args[3]
	client, err := api.NewClientWithResponses(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	most, wait, invisible := 3, float32(1), float32(60)
	acked := []string{}
	for {
		popped, err := client.PopMessagesWithResponse(ctx, group, api.PopWanted{Filter: filter, Most: &most, WaitS: &wait, InvisibleS: &invisible})
		if err != nil || popped.JSON200 == nil {
			log.Fatal(err, popped)
		}
		if len(popped.JSON200.Messages) == 0 {
			break
		}
		for _, each := range popped.JSON200.Messages {
			handles, payload := []string{each.Handle}, *each.Message.Payload
			extended, err := client.ExtendMessagesWithResponse(ctx, group, api.HandlesToExtend{Filter: filter, Handles: handles, InvisibleS: 120})
			if err != nil || extended.JSON200 == nil {
				log.Fatal(err, extended)
			}
			if payload == "bad" {
				reason := "bad"
				if _, err := client.RejectMessagesWithResponse(ctx, group, api.HandlesToReject{Filter: filter, Handles: handles, Reason: &reason}); err != nil {
					log.Fatal(err)
				}
			} else if payload == "later" && each.Attempt == 1 {
				after := float32(0)
				if _, err := client.RetryMessagesWithResponse(ctx, group, api.HandlesToRetry{Filter: filter, Handles: handles, AfterS: &after}); err != nil {
					log.Fatal(err)
				}
			} else {
				done, err := client.AckMessagesWithResponse(ctx, group, api.HandlesSettled{Filter: filter, Handles: handles})
				if err != nil || done.JSON200 == nil || done.JSON200.Settled != 1 {
					log.Fatal(err, done)
				}
				acked = append(acked, fmt.Sprintf("%s %d", payload, each.Attempt))
			}
		}
	}
	stale, err := client.AckMessagesWithResponse(ctx, group, api.HandlesSettled{Filter: filter, Handles: []string{"no handle"}})
	if err != nil || stale.ApplicationproblemJSONDefault == nil {
		log.Fatal(err, stale)
	}
	said, _ := json.Marshal(map[string]any{"acked": acked, "wrong": stale.ApplicationproblemJSONDefault.Type})
	fmt.Println(string(said))
}

"""What several methods share: a bandit over groups of peers, push-sum, hubs, heads that stay at home."""

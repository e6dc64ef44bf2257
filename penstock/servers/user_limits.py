"""Passes the quotas by user and by namespace from the settings to the objects that enforce them in a store."""

from gateway.access.quota_settings import QuotaSettings
from notify.local.hub import Hub
from notify.local.user_quotas import UserLimits


def limit_users(hub: Hub, quota: QuotaSettings) -> None:
    """Set the quotas of a store's users. Call it before any of the quotas is checked."""
    hub.consumers.most_of_user = quota.user_groups
    hub.consumers.most_in_namespace = quota.namespace_groups
    hub.consumers.bounds_default = hub.quotas.bounds_default = quota.bound_default_namespace
    hub.quotas.limits = UserLimits(*(getattr(quota, f"user_{name}") for name in UserLimits._fields))
    hub.quotas.namespace_limits = UserLimits(*(getattr(quota, f"namespace_{name}") for name in UserLimits._fields))

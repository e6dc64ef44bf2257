"""The quotas by user and by namespace that a store enforces, from the settings."""

from gateway.access.quota_settings import QuotaSettings
from notify.local.user_quotas import QuotaLimits, UserLimits


def quotas_of(quota: QuotaSettings) -> QuotaLimits:
    """The quotas of a store's users and namespaces."""
    user = UserLimits(*(getattr(quota, f"user_{name}") for name in UserLimits._fields))
    namespace = UserLimits(*(getattr(quota, f"namespace_{name}") for name in UserLimits._fields))
    return QuotaLimits(user, namespace, quota.user_groups, quota.namespace_groups, quota.bound_default_namespace)

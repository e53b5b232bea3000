export interface components { schemas: Record<string, any> }
